"""What a tenant chose of how its deadlines are treated reaches the kernel with each request."""

import asyncio
from itertools import count

import pytest

from engine.core.commands import Submit
from engine.host.command_log import CommandLogConfig
from engine.host.engine import HostConfig
from gateway.state import EdgeLimits
from tenants.embedded import EmbeddedValkey
from tenants.store import Store
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually

pytestmark = pytest.mark.model  # the text is that of the default model


@pytest.fixture(scope="module")
def server(codec, tmp_path_factory):
    """One that keeps a command log, where what the kernel was asked can be read."""
    valkey = EmbeddedValkey(tmp_path_factory.mktemp("valkey"))
    log = CommandLogConfig(tmp_path_factory.mktemp("log") / "commands")
    server = LiveServer(valkey.start(), codec, EdgeLimits(), HostConfig(command_log=log))
    server.start()
    server.say("So be it.")
    yield server
    server.stop()
    valkey.stop()


def asked(server: LiveServer, key: str, request: str) -> tuple[str | None, ...]:
    with server.client(key, x_request_id=request) as client:
        body = {"model": MODEL, "messages": HELLO, "max_tokens": 2}
        client.post("/v1/chat/completions", json=body).raise_for_status()
    return choices(server.submitted(request))


def choices(submit: Submit) -> tuple[str | float | None, ...]:
    return submit.admission, submit.on_infeasible, submit.tpot_target


def change(server: LiveServer, tenant: str, **changes: object) -> None:
    async def update() -> None:
        store = await Store.connect(server.store_url)
        await store.update_tenant(tenant, **changes)
        await store.close()

    asyncio.run(update())


def test_a_tenants_choices_come_with_its_requests_and_no_one_elses(server):
    assert asked(server, "choosy", "chosen-1") == ("goodput", "degrade", 0.05)
    assert asked(server, "gold", "chosen-2") == (None, None, None)


def test_a_tenant_divides_its_share_as_it_chose(server):
    asked(server, "gold", "undivided")
    assert [node.name for node in server.submitted("undivided").flow] == ["gold"]
    change(server, "gold", domain="key")
    requests = (f"divided-{number}" for number in count())

    def divided() -> bool:
        request = next(requests)
        asked(server, "gold", request)
        flow = [node.name for node in server.submitted(request).flow]
        return flow[0] == "gold" and len(flow) == 2

    eventually(divided)


def test_changed_choices_hold_without_a_restart(server):
    assert asked(server, "bronze", "before") == (None, None, None)
    change(server, "bronze", admission="feasible", on_infeasible="partial", tpot_target_ms=20)
    requests = (f"after-{number}" for number in count())
    eventually(lambda: asked(server, "bronze", next(requests)) == ("feasible", "partial", 0.02))
