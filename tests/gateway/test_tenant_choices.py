"""What a tenant chose of how its deadlines are treated reaches the kernel with each request."""

import asyncio
from itertools import count

import pytest

from engine.core.commands import Submit
from engine.host.command_log import CommandLogConfig
from engine.host.engine import HostConfig
from tenants.model import Tenant
from tenants.store import Store
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually, live_server

pytestmark = pytest.mark.model  # the text is that of the default model


@pytest.fixture(scope="module")
def server(codec, tmp_path_factory):
    """One that keeps a command log, where what the kernel was asked can be read."""
    log = CommandLogConfig(tmp_path_factory.mktemp("log") / "commands")
    host = HostConfig(command_log=log)
    with live_server(codec, tmp_path_factory.mktemp("valkey"), host=host) as server:
        server.say("So be it.")
        yield server


def asked(server: LiveServer, key: str, request: str) -> tuple[str | None, ...]:
    with server.client(key, x_request_id=request) as client:
        body = {"model": MODEL, "messages": HELLO, "max_tokens": 2}
        client.post("/v1/chat/completions", json=body).raise_for_status()
    return choices(server.submitted(request))


def choices(submit: Submit) -> tuple[str | float | None, ...]:
    chosen = submit.admission, submit.on_infeasible, submit.on_expiry, submit.tpot_target
    return (*chosen, submit.flow[-1].priority)


def change(server: LiveServer, tenant: str, **changes: object) -> None:
    async def update() -> None:
        store = await Store.connect(server.store_url)
        await store.update_tenant(tenant, **changes)
        await store.close()

    asyncio.run(update())


def test_a_tenants_choices_come_with_its_requests_and_no_one_elses(server):
    assert asked(server, "choosy", "chosen-1") == ("goodput", "degrade", None, 0.05, 0)
    assert asked(server, "gold", "chosen-2") == (None, None, None, None, 0)


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
    assert asked(server, "bronze", "before") == (None, None, None, None, 0)
    change(
        server,
        "bronze",
        admission="feasible",
        on_infeasible="partial",
        on_expiry="fail",
        tpot_target_ms=20,
        priority=7,
    )
    requests = (f"after-{number}" for number in count())
    chosen = ("feasible", "partial", "fail", 0.02, 7)
    eventually(lambda: asked(server, "bronze", next(requests)) == chosen)


def test_a_tenant_divides_its_share_between_the_users_that_its_calls_name(server):
    server.add(Tenant("agency", domain="user"))
    openai = {"model": MODEL, "messages": HELLO, "max_tokens": 1}
    calls = {
        "nobody": ("/v1/chat/completions", openai),
        "ann": ("/v1/chat/completions", openai | {"user": "ann"}),
        "ann-again": ("/v1/messages", openai | {"metadata": {"user_id": "ann"}}),
        "bob": ("/v1/chat/completions", openai | {"user": "ann", "safety_identifier": "bob"}),
        "ann-too": ("/v1/completions", {"model": MODEL, "prompt": "hi", "user": "ann"}),
    }
    flows = {}
    for request, (path, body) in calls.items():
        with server.client("agency", x_request_id=f"user-{request}") as client:
            client.post(path, json=body).raise_for_status()
        flows[request] = [node.name for node in server.submitted(f"user-{request}").flow]
    assert [len(flow) for flow in flows.values()] == [2] * len(calls)
    assert flows["ann"] == flows["ann-again"] == flows["ann-too"]
    assert len({flows[name][1] for name in ("nobody", "ann", "bob")}) == 3
