"""What is cancelled, or won, on one server ends on every server of the store.

The same with servers as processes is in `test_shared_limits.py`, where two are running.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from gateway.courier import LOOK_SECONDS
from telemetry.events import Cause
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually

pytestmark = pytest.mark.model  # the text is that of the default model

CHAT = "/v1/chat/completions"
CALL = {"model": MODEL, "messages": HELLO, "ignore_eos": True}


@pytest.fixture(scope="module")
def replicas(pair: list[LiveServer]) -> list[LiveServer]:
    for server in pair:
        eventually(lambda server=server: not server.gateway.access.alone)
        server.say("on and on ", endless=True, step_seconds=0.005)
    return pair


def late(server: LiveServer, task: str, key: str = "gold", **headers: str) -> httpx.Response:
    """A call under a task that may be over."""
    with server.client(key, x_task_id=task, **headers) as client:
        return client.post(CHAT, json={**CALL, "max_tokens": 1})


def run_on(server: LiveServer, stack: ExitStack, task: str, name: str, key: str = "gold") -> None:
    """A call that does not end by itself, once it speaks."""
    body = json.dumps({**CALL, "stream": True}).encode()
    stream = stack.enter_context(server.connect(body, key, x_task_id=task, x_request_id=name))
    data = b""
    while b"data: " not in data:
        data += stream.recv(65536)


def commit(server: LiveServer, task: str, attempt: str) -> httpx.Response:
    with server.client() as client:
        return client.post(f"/v1/tasks/{task}/commit", json={"attempt": attempt})


def test_a_cancelled_task_ends_everywhere_and_refuses_late_arrivals(replicas):
    first, second = replicas
    with ExitStack() as stack:
        run_on(first, stack, "far", "far.1")
        run_on(second, stack, "far", "far.2")
        run_on(first, stack, "far10", "far10.1")
        run_on(first, stack, "far", "theirs.1", key="bronze")
        with second.client() as client:
            assert client.delete("/v1/tasks/far").status_code == 200
        for server, name in ((first, "far.1"), (second, "far.2")):
            (end,) = server.ends(name)
            assert end.cause is Cause.CANCELLED
            assert end.blocks_released > 0
        for server in replicas:
            assert late(server, "far").status_code == 499
            assert late(server, "far", key="bronze").status_code == 200
        first.flush()
        assert not first.logged(type(end), "far10.1")
        assert not first.logged(type(end), "theirs.1")


def test_a_race_has_one_winner_on_all_servers(replicas):
    first, second = replicas
    with ExitStack() as stack:
        for name in ("a1", "a2"):
            run_on(first, stack, "race", f"{name}.first")  # an attempt is named by its request
            run_on(second, stack, "race", f"{name}.second")
        assert commit(second, "race", "a1.first").status_code == 200
        for server, name in ((first, "a2.first"), (second, "a1.second"), (second, "a2.second")):
            (end,) = server.ends(name)
            assert end.cause is Cause.LOST_RACE
        first.flush()
        assert not first.logged(type(end), "a1.first")
        for server in replicas:
            refused = commit(server, "race", "a2.first")
            assert refused.status_code == 409
            assert refused.json()["error"]["committed"]["attempt"] == "a1.first"
            assert commit(server, "race", "a1.first").status_code == 200
            assert late(server, "race", x_attempt_id="a3").status_code == 499
            assert late(server, "race", x_attempt_id="a1.first").status_code == 200


def test_of_winners_named_at_a_time_on_different_servers_one_stands(replicas):
    with ThreadPoolExecutor(2) as pool:
        for number in range(4):
            task = f"tie-{number}"
            answers = list(pool.map(commit, replicas, [task] * 2, ["left", "right"]))
            assert sorted(answer.status_code for answer in answers) == [200, 409]
            winner = "left" if answers[0].status_code == 200 else "right"
            loser = {"left": "right", "right": "left"}[winner]
            for server in replicas:
                assert late(server, task, x_attempt_id=winner).status_code == 200
                assert late(server, task, x_attempt_id=loser).status_code == 499


def test_a_server_that_starts_later_knows_what_was_cancelled(replicas, codec):
    first, _ = replicas
    with first.client() as client:
        client.delete("/v1/tasks/before")
    assert commit(first, "won-before", "a1").status_code == 200
    with LiveServer(first.store_url, codec, replica_of=first) as third:
        third.say("on and on ", endless=True)
        eventually(lambda: late(third, "before").status_code == 499)
        assert late(third, "won-before", x_attempt_id="a2").status_code == 499
        assert late(third, "won-before", x_attempt_id="a1").status_code == 200
        assert commit(third, "won-before", "a2").status_code == 409


def test_what_is_cancelled_with_the_store_away_reaches_others_when_it_is_back(replicas, valkey):
    first, second = replicas
    assert late(second, "unheard").status_code == 200  # its key is known from now on
    valkey.stop()
    try:
        with ExitStack() as stack:
            run_on(first, stack, "unheard", "unheard.1")
            with first.client() as client:
                assert client.delete("/v1/tasks/unheard").status_code == 200
            assert commit(first, "won-away", "a1").status_code == 200
            (end,) = first.ends("unheard.1")
            assert end.cause is Cause.CANCELLED
    finally:
        valkey.start()
    eventually(lambda: late(second, "unheard").status_code == 499)
    eventually(lambda: late(second, "won-away", x_attempt_id="a2").status_code == 499)


NEWER = {"scope": {"tenant": "gold", "task": "kept", "region": "eu"}, "spare": None, "origin": "x"}


def test_what_cannot_be_read_cancels_nothing_and_stops_no_later_one(replicas, caplog):
    """A newer server's cancellation of a part of a task must not end the whole of it here."""
    first, second = replicas

    async def tell(client: Any) -> None:
        for text in ("{", "[]", "null", json.dumps(NEWER)):
            entry = await client.xadd("wm:cancelled", {"text": text})
            await client.publish("wm:cancellations", f"{entry} {text}")
        await client.publish("wm:cancellations", "no entry")

    first.on_loop(lambda store: store.connection.call(tell))
    with first.client() as client:
        assert client.delete("/v1/tasks/heard").status_code == 200
    eventually(lambda: late(second, "heard").status_code == 499)
    assert late(second, "kept").status_code == 200
    assert "cannot be read" in caplog.text


def test_a_damaged_log_keeps_nobody_from_hearing(replicas):
    first, second = replicas

    async def damage(client: Any) -> None:
        await client.set("wm:cancelled", "text")
        await client.client_kill_filter(_type="pubsub")  # so that they look at what they missed

    first.on_loop(lambda store: store.connection.call(damage))
    with first.client() as client:
        eventually(lambda: not first.gateway.access.alone)

        def heard() -> bool:
            assert client.delete("/v1/tasks/again").status_code == 200
            return late(second, "again").status_code == 499

        eventually(heard)


def test_a_server_is_not_alone_while_subscriptions_are_broken(replicas):
    first, _ = replicas

    async def kill(client: Any) -> None:
        await client.client_kill_filter(_type="pubsub")

    def cut() -> bool:
        first.on_loop(lambda store: store.connection.call(kill))
        assert not first.gateway.access.alone
        return time.monotonic() > end

    end = time.monotonic() + 2 * LOOK_SECONDS
    eventually(cut)


def test_a_winner_that_cannot_be_read_is_no_second_one(replicas):
    first, _ = replicas

    async def damage(client: Any) -> None:
        await client.hset("wm:winners:gold", "raced", "somebody")

    first.on_loop(lambda store: store.connection.call(damage))
    refused = commit(first, "raced", "a1")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
    assert late(first, "raced", x_attempt_id="a2").status_code == 200
