"""What a task or a call is, is told by every server of the store, wherever it was computed.

The same with servers as processes, one of them killed, is in `test_shared_limits.py`.
"""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from engine.runtime.text.codec import TextCodec
from tenants.connection import cancelled
from tenants.embedded import EmbeddedValkey
from tenants.store import Store
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually

pytestmark = pytest.mark.model  # the text is that of the default model

CHAT = "/v1/chat/completions"
CALL = {"model": MODEL, "messages": HELLO}


@pytest.fixture(scope="module")
def replicas(pair: list[LiveServer]) -> list[LiveServer]:
    for server in pair:
        eventually(lambda server=server: not server.gateway.access.alone)
    return pair


@pytest.fixture(autouse=True)
def _speaking(replicas: list[LiveServer]) -> None:
    for server in replicas:
        server.say("one two three")


def ask(server: LiveServer, task: str, key: str = "gold", **more: Any) -> httpx.Response:
    headers = {name: more.pop(name) for name in ("x_request_id", "x_attempt_id") if name in more}
    with server.client(key, x_task_id=task, **headers) as client:
        return client.post(CHAT, json=CALL | more)


def told(server: LiveServer, task: str, key: str = "gold") -> httpx.Response:
    with server.client(key) as client:
        return client.get(f"/v1/tasks/{task}")


def whole(server: LiveServer, path: str) -> dict[str, Any]:
    """What is told once every server has had its say; the machine may be slow."""

    def look() -> httpx.Response:
        with server.client() as client:
            return client.get(path)

    eventually(lambda: look().json().get("complete"))
    return look().json()


@contextmanager
def questions(server: LiveServer) -> Iterator[list[str]]:
    """Those that are put to everybody meanwhile."""
    heard: list[str] = []
    store = server.on_loop(lambda store: Store.connect(server.store_url))

    async def hear(_: Store) -> asyncio.Task[None]:
        listening = asyncio.Event()

        async def ready() -> None:
            listening.set()

        channels = {"wm:questions": heard.append}
        task = asyncio.create_task(store.connection.listen(channels, ready))
        await listening.wait()
        return task

    async def close(_: Store) -> None:
        await cancelled(task)
        await store.close()

    task = server.on_loop(hear)
    try:
        yield heard
    finally:
        server.on_loop(close)


@contextmanager
def frozen(server: LiveServer) -> Iterator[None]:
    """It hears and does nothing meanwhile."""
    release = threading.Event()
    server._loop.call_soon_threadsafe(release.wait, 30)
    try:
        yield
    finally:
        release.set()


def test_a_task_is_the_sum_of_what_all_servers_did_for_it(replicas):
    answers = [
        ask(replicas[number % 2], "summed", x_request_id=f"r{number}", n=1 + number % 2).json()
        for number in range(4)
    ]
    states = [whole(server, "/v1/tasks/summed") for server in replicas]
    assert states[0] == states[1]
    state = states[0]
    assert state["missing_servers"] == 0
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert state["usage"][name] == sum(answer["usage"][name] for answer in answers)
    assert state["states"] == {"queued": 0, "prefill": 0, "decode": 0, "ended": 6, "refused": 0}
    assert state["causes"] == {"stop": 6}
    requests = [one["request"] for one in state["sequences"]]
    assert requests == ["r0", "r1", "r1", "r2", "r3", "r3"]  # as they came


def test_what_runs_elsewhere_its_lag_and_its_winner_are_told(replicas):
    first, second = replicas
    for server in replicas:
        server.say("on and on ", endless=True, step_seconds=0.005)
    body = json.dumps({**CALL, "ignore_eos": True, "stream": True}).encode()
    with ExitStack() as stack:
        for server, name in ((first, "lost.1"), (second, "lost.2"), (second, "won")):
            stack.enter_context(server.connect(body, x_task_id="run", x_request_id=name))
        eventually(lambda: told(first, "run").json().get("states", {}).get("decode") == 3)
        with first.client() as client:
            client.post("/v1/tasks/run/commit", json={"attempt": "won"}).raise_for_status()
        eventually(lambda: told(first, "run").json()["states"]["ended"] == 2)
        states = [whole(server, "/v1/tasks/run") for server in replicas]
    for state in states:
        assert state["committed"] == {"attempt": "won", "run": None}
        assert state["causes"] == {"lost_race": 2}
        assert state["states"]["decode"] == 1
        lags = [one["cancellation_lag_tokens"] for one in state["sequences"]]
        assert state["cancellation_lag_tokens"] == sum(lags)


def test_the_newest_of_all_servers_are_listed_and_all_are_counted(replicas):
    for number in range(10):
        ask(replicas[number % 2], "many", x_request_id=f"m{number}", n=16).raise_for_status()
    state = whole(replicas[0], "/v1/tasks/many")
    assert state["states"]["ended"] == 160
    listed = Counter(one["request"] for one in state["sequences"])
    assert listed == {f"m{number}": 16 for number in range(2, 10)}


def test_a_call_is_explained_whichever_server_answered_it(replicas):
    first, second = replicas
    assert ask(first, "why", x_request_id="explained", n=2).status_code == 200
    paths = [whole(server, "/v1/requests/explained/explain") for server in replicas]
    assert paths[0] == paths[1]
    assert [one["task"] for one in paths[1]["sequences"]] == ["why"] * 2
    with second.client("bronze") as client:
        assert client.get("/v1/requests/explained/explain").status_code == 404


def test_it_is_404_for_what_no_server_knows_and_for_another_tenants(replicas):
    first, second = replicas
    assert ask(first, "secret").status_code == 200
    whole(second, "/v1/tasks/secret")
    for server in replicas:
        eventually(lambda server=server: told(server, "nowhere").status_code == 404)
        eventually(lambda server=server: told(server, "secret", "bronze").status_code == 404)
    assert ask(second, "secret", "bronze").status_code == 200
    eventually(lambda: told(first, "secret", "bronze").status_code == 200)
    for key in ("gold", "bronze"):
        eventually(lambda key=key: len(told(first, "secret", key).json()["sequences"]) == 1)


def test_what_nobody_could_be_asked_about_is_503_and_not_404(replicas):
    """And what is known here is told, with how many had no say, of a server that hangs."""
    first, second = replicas
    assert ask(first, "half").status_code == 200
    assert ask(second, "half").status_code == 200
    assert whole(first, "/v1/tasks/half")["states"]["ended"] == 2
    with frozen(second):
        state = told(first, "half").json()
        assert (state["complete"], state["missing_servers"]) == (False, 1)
        assert state["states"]["ended"] == 1
        unknown = told(first, "nowhere")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "servers_silent")
        assert 1 <= int(unknown.headers["retry-after"]) <= 60
    assert whole(first, "/v1/tasks/half")["states"]["ended"] == 2


def test_a_server_that_is_alone_asks_nobody(server: LiveServer):
    eventually(lambda: server.gateway.access.alone)
    server.say("yes")
    assert ask(server, "lonely").status_code == 200
    with questions(server) as heard:
        state = whole(server, "/v1/tasks/lonely")
        assert told(server, "never").status_code == 404
    assert (state["missing_servers"], heard) == (0, [])


def test_an_older_server_that_hears_no_questions_counts_as_missing(replicas):
    first, _ = replicas
    assert ask(first, "mixed").status_code == 200

    async def older(store: Store) -> Any:
        async def subscribe(client: Any) -> Any:
            subscription = client.pubsub()
            await subscription.subscribe("wm:cancellations")
            await subscription.get_message(timeout=5)
            return subscription

        return await store.connection.call(subscribe)

    subscription = first.on_loop(older)
    eventually(lambda: told(first, "mixed").json()["missing_servers"] == 1)
    assert told(first, "mixed").json()["complete"] is False
    assert told(first, "nowhere").json()["error"]["code"] == "servers_silent"
    first.on_loop(lambda _: subscription.aclose())
    whole(first, "/v1/tasks/mixed")


def test_what_cannot_be_read_is_passed_over(replicas, caplog):
    first, second = replicas
    assert ask(second, "kept").status_code == 200
    name = first.gateway.access.departed.replica.name

    async def tell(client: Any) -> None:
        for text in ("{", "[]", "null", '{"id": "x"}', '{"question": "x", "server": "y"}'):
            await client.publish("wm:questions", text)
            await client.publish(f"wm:answers:{name}", text)
        newer = {"id": "x", "server": "s", "kind": "new", "tenant": "gold", "name": "kept", "w": 1}
        await client.publish("wm:questions", json.dumps(newer))

    first.on_loop(lambda store: store.connection.call(tell))
    assert whole(first, "/v1/tasks/kept")["states"]["ended"] == 1
    assert "cannot be read" in caplog.text


def test_with_the_store_away_what_is_known_here_is_told_as_such(
    replicas: list[LiveServer], valkey: EmbeddedValkey
) -> None:
    first, second = replicas
    assert ask(first, "away").status_code == 200
    assert ask(second, "away").status_code == 200
    valkey.stop()
    try:
        for _ in range(2):  # before and after this has been noticed
            state = told(first, "away").json()
            assert (state["complete"], state["missing_servers"]) == (False, None)
            assert state["states"]["ended"] == 1
            assert told(first, "nowhere").json()["error"]["code"] == "servers_silent"
            eventually(lambda: first.gateway.access.health.away)
    finally:
        valkey.start()
    assert whole(first, "/v1/tasks/away")["states"]["ended"] == 2
    eventually(lambda: told(first, "nowhere").status_code == 404)


def test_what_a_server_knew_that_has_stopped_is_missed(
    replicas: list[LiveServer], codec: TextCodec
):
    """Last of this file, since it is missed for a while."""
    first, _ = replicas
    with LiveServer(first.store_url, codec, replica_of=first) as third:
        third.say("one two three")
        assert ask(first, "left").status_code == 200
        assert ask(third, "left").status_code == 200
        eventually(lambda: whole(first, "/v1/tasks/left")["states"]["ended"] == 2)
    eventually(lambda: told(first, "left").json()["missing_servers"] == 1)
    state = told(first, "left").json()
    assert state["complete"] is False
    assert state["states"]["ended"] == 1
    eventually(lambda: told(first, "nowhere").status_code == 404)  # nobody is left to ask
