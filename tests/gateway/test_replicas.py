"""Two replicas on one store: what changes there reaches both, and both outlive its absence."""

from typing import Any

import httpx
import pytest

from tenants.embedded import EmbeddedValkey
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually

pytestmark = pytest.mark.model  # the text is that of the default model


@pytest.fixture(scope="module")
def replicas(pair: list[LiveServer]) -> list[LiveServer]:
    for server in pair:
        server.say("still here")
    return pair


def chat(server: LiveServer, key: str) -> httpx.Response:
    with server.client(key) as client:
        return client.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO})


def outcome(server: LiveServer, key: str) -> str:
    response = chat(server, key)
    if response.status_code == 200:
        return "served"
    error = response.json()["error"]
    return error.get("reason", error["code"])


def test_a_change_reaches_every_replica(replicas: list[LiveServer]) -> None:
    first, second = replicas
    store = first.on_loop

    def everywhere(key: str, expected: str) -> None:
        for server in replicas:
            eventually(lambda server=server: outcome(server, key) == expected)

    public_id = first.keys["choosy"].split("-")[1]
    everywhere("choosy", "served")
    store(lambda s: s.update_key(public_id, disabled=True))
    everywhere("choosy", "disabled")
    store(lambda s: s.update_key(public_id, disabled=False))
    everywhere("choosy", "served")
    store(lambda s: s.disable_tenant("choosy"))
    everywhere("choosy", "tenant_disabled")
    store(lambda s: s.update_tenant("choosy", disabled=False, max_max_tokens=1))
    everywhere("choosy", "served")
    assert chat(second, "choosy").json()["usage"]["completion_tokens"] == 1
    store(lambda s: s.rotate_key(public_id, overlap=0))
    everywhere("choosy", "expired")


def test_what_the_admin_api_of_one_replica_changes_reaches_the_other(
    replicas: list[LiveServer],
) -> None:
    first, second = replicas
    public_id = first.keys["strict"].split("-")[1]
    assert outcome(second, "strict") == "served"
    with first.client("admin") as admin:
        rotated = admin.post(f"/admin/keys/{public_id}/rotate", json={"overlap": 600}).json()
        second.keys["rotated"] = rotated["key"]
        assert outcome(second, "strict") == outcome(second, "rotated") == "served"
        admin.post(f"/admin/keys/{public_id}/revoke").raise_for_status()
        eventually(lambda: outcome(second, "strict") == "revoked")
        assert outcome(second, "rotated") == "served"
        admin.patch("/admin/tenants/strict", json={"disabled": True}).raise_for_status()
        eventually(lambda: outcome(second, "rotated") == "tenant_disabled")


def test_the_store_goes_away_and_comes_back(
    replicas: list[LiveServer], valkey: EmbeddedValkey
) -> None:
    for server in replicas:
        assert outcome(server, "gold") == "served"
        assert ready(server)["store"] == {"state": "up"}
    valkey.stop()
    for server in replicas:
        refused = chat(server, "bronze")  # never seen
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "store_unavailable"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert outcome(server, "gold") == "served"
        eventually(lambda server=server: ready(server)["store"]["state"] == "away")
        assert metric(server, "watermaster_store_up") == 0
        assert metric(server, "watermaster_store_losses_total") == 1
        assert metric(server, "watermaster_store_away_seconds") > 0
    valkey.start()
    for server in replicas:
        eventually(lambda server=server: outcome(server, "bronze") == "served")
        eventually(lambda server=server: ready(server)["store"] == {"state": "up"})
        assert metric(server, "watermaster_store_up") == 1
        assert metric(server, "watermaster_store_away_seconds") == 0


@pytest.mark.parametrize(
    ("take", "give"),
    [
        (("config", "set", "maxmemory", "1"), ("config", "set", "maxmemory", "0")),
        (("replicaof", "127.0.0.1", "1"), ("replicaof", "no", "one")),
    ],
    ids=["full", "read-only"],
)
def test_a_store_that_takes_no_writes_is_as_good_as_away(
    replicas: list[LiveServer], take: tuple[str, ...], give: tuple[str, ...]
) -> None:
    first = replicas[0]

    def order(*words: str) -> None:
        first.on_loop(lambda s: s.connection.call(lambda client: client.execute_command(*words)))

    order(*take)
    try:
        for server in replicas:
            eventually(lambda server=server: ready(server)["store"]["state"] == "away")
            assert metric(server, "watermaster_store_up") == 0
            assert outcome(server, "gold") == "served"
    finally:
        order(*give)
    for server in replicas:
        eventually(lambda server=server: ready(server)["store"] == {"state": "up"})
        assert outcome(server, "gold") == "served"


def ready(server: LiveServer) -> dict[str, object]:
    response = httpx.get(f"{server.url}/ready")
    assert response.status_code == 200
    return response.json()


def metric(server: LiveServer, name: str) -> float:
    (line,) = [
        line
        for line in httpx.get(f"{server.url}/metrics").text.splitlines()
        if line.startswith(name + " ")
    ]
    return float(line.split()[1])


def test_a_layout_that_a_newer_server_changed_is_noticed(
    replicas: list[LiveServer],
) -> None:
    first, _ = replicas

    def write(version: str) -> None:
        async def written(client: Any) -> None:
            await client.set("wm:schema", version)

        first.on_loop(lambda store: store.connection.call(written))

    write("2")
    for server in replicas:
        eventually(lambda server=server: ready(server)["store"]["state"] == "away")
    write("1")
    for server in replicas:
        eventually(lambda server=server: ready(server)["store"]["state"] == "up")
