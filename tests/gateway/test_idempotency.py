"""A call under an idempotency key: computed once, joined while it runs, replayed afterwards."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

from gateway import kept_answers, recording
from gateway.client import Client, RetryPolicy, scope
from telemetry.events import Cause, SequenceArrived
from tenants.calls import CallName
from tenants.model import Tenant
from tenants.store import Store
from tests.gateway.conftest import TEXT
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually, read, read_all

pytestmark = pytest.mark.model  # the text is that of the default model

NOT_KEPT = "idempotent_answer_not_kept"
CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": HELLO}
ENDLESS = {**BODY, "ignore_eos": True, "seed": 0}


def arrivals(server: LiveServer, request: str) -> int:
    server.flush()
    return len(server.logged(SequenceArrived, request))


def keyed(key: str, **more: str) -> dict[str, str]:
    return {"idempotency-key": key, **more}


def content(**more: object) -> bytes:
    return json.dumps({**ENDLESS, **more}).encode()


CALLS = [
    (CHAT, BODY),
    ("/v1/completions", {"model": MODEL, "prompt": "hi", "max_tokens": 50}),
    ("/v1/messages", {**BODY, "max_tokens": 50}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), CALLS)
def test_an_answer_is_computed_once_and_replayed(server, path, body, stream):
    key = f"once-{path}-{stream}"
    with server.client() as client:
        answers = [
            client.post(path, json={**body, "stream": stream}, headers=keyed(key, **names))
            for names in ({"x-request-id": "q.1"}, {"x-request-id": "q.2"}, {"x-task-id": "late"})
        ]
    first, *others = answers
    assert "idempotent-replayed" not in first.headers
    assert first.status_code == 200
    for other in others:
        assert other.status_code == 200
        assert other.content == first.content
        assert other.headers["content-type"] == first.headers["content-type"]
        assert other.headers["idempotent-replayed"] == "true"
    assert others[0].headers["x-request-id"] == "q.2"  # each call is still one of its own
    assert arrivals(server, "q.2") == 0


def test_the_order_of_members_is_no_other_payload(server):
    with server.client(**keyed("order")) as client:
        first = client.post(CHAT, json={**BODY, "max_tokens": 3, "n": 2})
        again = client.post(CHAT, content=json.dumps({"n": 2, "max_tokens": 3, **BODY}, indent=1))
    assert again.json() == first.json()


def test_a_key_is_for_one_payload_of_one_tenant(server):
    with (
        server.client(**keyed("mine")) as client,
        server.client("bronze", **keyed("mine")) as other,
    ):
        first = client.post(CHAT, json=BODY)
        reused = [
            client.post(CHAT, json={**BODY, "max_tokens": 5}),
            client.post("/v1/completions", json={"model": MODEL, "prompt": "hi"}),
        ]
        theirs = other.post(CHAT, json={**BODY, "max_tokens": 5})
    for answer in reused:
        assert answer.status_code == 422
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("idempotency_key_reused", "idempotency-key")
    assert theirs.status_code == 200
    assert theirs.json()["id"] != first.json()["id"]


def test_a_key_that_may_not_use_the_model_reads_nobodys_answer(server):
    with server.client(**keyed("narrow")) as client:
        assert client.post(CHAT, json=BODY).status_code == 200
    with server.client("elsewhere", **keyed("narrow")) as client:  # of the same tenant
        assert client.post(CHAT, json=BODY).status_code == 404


def test_malformed_keys_and_bodies_are_400(server):
    with server.client() as client:
        answer = client.post(CHAT, json=BODY, headers=keyed("k" * 257))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "idempotency-key"
        deep = content(metadata={}).replace(b"{}", b"[" * 300 + b"]" * 300)
        for body in (b"{", b"[]", b"{}", deep):
            assert client.post(CHAT, content=body, headers=keyed("bad")).status_code == 400
        assert client.post(CHAT, json=BODY, headers=keyed("bad")).status_code == 200


def test_a_replay_takes_nothing_of_the_tenants_limits(server):
    server.on_loop(lambda store: store.create_tenant(Tenant("counted", requests_per_minute=2)))
    issued = server.on_loop(lambda store: store.create_key("counted"))
    server.keys["counted"] = issued.raw
    with server.client("counted", **keyed("counted")) as client:
        left = [
            int(client.post(CHAT, json=BODY).headers["x-ratelimit-remaining-requests"])
            for _ in range(4)
        ]
        assert left[1:] == [left[0]] * 3
        other = client.post(CHAT, json=BODY, headers=keyed("counted-2"))
    assert int(other.headers["x-ratelimit-remaining-requests"]) == left[0] - 1


# -- joining ----------------------------------------------------------------------------------


def joined(server: LiveServer, key: str, *bodies: bytes) -> list[socket.socket]:
    """Connections that send the same call while it runs."""
    calls = [
        server.connect(body, idempotency_key=key, x_request_id=f"{key}.{number}")
        for number, body in enumerate(bodies)
    ]
    eventually(lambda: server.gateway.slots.held >= len(calls))
    eventually(lambda: any(arrivals(server, f"{key}.{n}") for n in range(len(calls))))
    return calls


def test_calls_that_run_are_joined_and_one_hang_up_ends_nothing(server):
    server.say("on and on ", endless=True, step_seconds=0.005)
    body = content(max_tokens=100)
    calls = joined(server, "join", body, body, body)
    calls[0].close()
    answers = [read(call) for call in calls[1:]]
    assert answers[0][1] == answers[1][1]
    assert json.loads(answers[0][1])["usage"]["completion_tokens"] == 100
    assert sum(arrivals(server, f"join.{number}") for number in range(3)) == 1
    for call in calls[1:]:
        call.close()


def test_streams_are_joined_from_their_beginning(server):
    server.say("on and on ", endless=True, step_seconds=0.005)
    body = content(max_tokens=60, stream=True)
    with server.connect(body, idempotency_key="flow", x_request_id="flow.1") as first:
        head = begun(first)
        with server.connect(body, idempotency_key="flow", x_request_id="flow.2") as second:
            one, two = head + read_all(first), read_all(second)
    assert arrivals(server, "flow.2") == 0
    assert b"idempotent-replayed: true" in two
    assert events(one) == events(two)
    assert len(events(one)) > 50


def begun(stream: socket.socket) -> bytes:
    """What came until the answer is under way."""
    data = b""
    while b"data: " not in data:
        data += stream.recv(65536)
    return data


def events(answer: bytes) -> list[bytes]:
    return [line for line in answer.splitlines() if line.startswith(b"data: ")]


def test_the_last_hang_up_stops_the_work_and_the_key_is_free_again(server):
    server.say("on and on ", endless=True, step_seconds=0.005)
    calls = joined(server, "left", content(), content())
    for call in calls:
        call.close()
    (end,) = [
        end
        for number in range(2)
        for end in (server.ends(f"left.{number}") if arrivals(server, f"left.{number}") else [])
    ]
    assert end.cause is Cause.DISCONNECTED
    assert end.output_tokens < 500
    server.assert_idle()
    server.say(TEXT)
    with server.client() as client:  # another payload, too: nothing was kept
        answer = client.post(CHAT, json=BODY, headers=keyed("left"))
    assert answer.status_code == 200
    assert "idempotent-replayed" not in answer.headers


def test_who_joins_keeps_its_own_deadline(server):
    server.say("on and on ", endless=True, step_seconds=0.005)
    with server.connect(
        content(max_tokens=150), idempotency_key="due", x_request_id="due.0"
    ) as one:
        eventually(lambda: arrivals(server, "due.0"))
        with server.client(**keyed("due", x_timeout_ms="100")) as client:
            late = client.post(CHAT, json={**ENDLESS, "max_tokens": 150})
        assert late.status_code == 504
        assert read(one)[0].startswith(b"HTTP/1.1 200 ")


# -- failures ---------------------------------------------------------------------------------


def test_what_failed_is_told_to_all_and_may_be_tried_again(server):
    server.say("on and on ", endless=True, step_seconds=0.002)
    with server.client("small", **keyed("tried")) as client:
        with server.occupied(8), server.occupied(1, "small", max_tokens=5):
            refused = client.post(CHAT, json=BODY)
            assert refused.status_code == 429
            assert refused.headers["retry-after"]
        answer = client.post(CHAT, json=BODY)
    assert answer.status_code == 200
    assert "idempotent-replayed" not in answer.headers


def test_a_stream_that_failed_in_the_middle_is_not_kept(server):
    server.say("on and on ", endless=True, step_seconds=0.005)
    body = content(stream=True)
    with (
        server.client() as client,
        server.connect(body, idempotency_key="mid", x_task_id="mid", x_request_id="mid.0") as one,
    ):
        begun(one)
        with server.connect(body, idempotency_key="mid") as two:
            eventually(lambda: server.gateway.slots.held == 2)
            client.delete("/v1/tasks/mid")
            for call in (one, two):
                assert b'"code":"cancelled"' in read_all(call)
        server.say(TEXT)
        again = client.post(CHAT, content=body, headers=keyed("mid"))
    assert again.text.endswith("data: [DONE]\n\n")
    assert "idempotent-replayed" not in again.headers


@pytest.mark.parametrize("stream", [False, True])
def test_answers_too_large_to_keep_are_refused_and_not_computed_again(server, monkeypatch, stream):
    monkeypatch.setattr(recording, "MOST_BYTES", 2000)
    body = {**ENDLESS, "max_tokens": 600, "stream": stream}
    with server.client(**keyed(f"large-{stream}")) as client:
        first = client.post(CHAT, json=body)
        assert len(first.content) > 2000
        assert first.status_code == 200
        eventually(lambda: _code(client.post(CHAT, json=body)) == NOT_KEPT)
        again = client.post(CHAT, json=body)
    assert again.status_code == 409
    assert again.headers["x-should-retry"] == "false"


def _code(answer: httpx.Response) -> str | None:
    """Of a refusal; None of a success or a stream, as long as the answer can still be joined."""
    return None if answer.status_code == 200 else answer.json()["error"]["code"]


def test_a_long_stream_that_runs_cannot_be_joined_and_says_how_long_it_may_take(
    server, monkeypatch
):
    monkeypatch.setattr(recording, "MOST_BYTES", 2000)
    server.say("on and on ", endless=True, step_seconds=0.002)
    with server.connect(content(stream=True), idempotency_key="long") as one:
        data = b""
        while len(data) < 8000:
            data += one.recv(65536)
        with server.client(**keyed("long")) as client:
            refused = client.post(CHAT, json={**ENDLESS, "stream": True})
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "idempotent_call_running"
    assert refused.headers["retry-after"]
    assert "x-should-retry" not in refused.headers


def test_when_too_much_is_held_together_streams_go_on_and_are_not_kept(server, monkeypatch):
    monkeypatch.setattr(recording, "MOST_TOGETHER", 2000)
    body = {**ENDLESS, "max_tokens": 300, "stream": True}
    with server.client() as client:
        first, second = (client.post(CHAT, json=body, headers=keyed(f"all-{n}")) for n in range(2))
        for answer in (first, second):
            assert answer.text.endswith("data: [DONE]\n\n")
            assert len(events(answer.content)) > 200
        eventually(lambda: _code(client.post(CHAT, json=body, headers=keyed("all-0"))) == NOT_KEPT)
        monkeypatch.undo()
        third = client.post(CHAT, json=body, headers=keyed("all-2"))  # what was held is given back
        again = client.post(CHAT, json=body, headers=keyed("all-2"))
    assert again.content == third.content


def test_a_reader_who_stops_holds_nobody_up_and_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(recording, "MOST_BYTES", 20_000)
    body = content(stream=True, max_tokens=1900)
    with (
        server.connect(body, idempotency_key="slow", x_request_id="slow.0") as idle,
        server.connect(body, idempotency_key="slow") as busy,
    ):
        assert events(read_all(busy))[-1] == b"data: [DONE]"
        eventually(lambda: server.gateway.slots.held < 2)
        assert not idle_one_is_complete(idle)


def idle_one_is_complete(stream: socket.socket) -> bool:
    """What is left in the pipe, or a cut."""
    data = b""
    with suppress(ConnectionResetError):
        while piece := stream.recv(65536):
            data += piece
    return b"[DONE]" in data


@contextmanager
def losing_first_answer(server: LiveServer) -> Iterator[str]:
    """The URL of a middleman who loses the first answer and passes on the second."""

    def pass_on(listener: socket.socket) -> None:
        for lost in (True, False):
            caller, _ = listener.accept()
            with caller, socket.create_connection(server.address) as upstream:
                request = caller.recv(65536)
                while b'"messages"' not in request:
                    request += caller.recv(65536)
                upstream.sendall(request)
                head, body = read(upstream)
                if not lost:
                    caller.sendall(head + b"\r\n\r\n" + body)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        passing = pool.submit(pass_on, listener)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        passing.result(10)


def test_an_answer_that_was_lost_on_the_way_is_not_computed_again(server):
    """Our own client sends a key of its own with each call."""
    with (
        losing_first_answer(server) as url,
        Client(url, server.keys["gold"], RetryPolicy(base=0.0)) as mine,
        scope(task="lost"),
    ):
        answer = mine.chat(**BODY)
    assert answer["choices"][0]["message"]["content"] == TEXT
    server.flush()
    arrived = [e for e in server.events.snapshot() if isinstance(e, SequenceArrived)]
    assert [e.lineage.task for e in arrived].count("lost") == 1


# -- two servers on one store --------------------------------------------------------------------


def ask(server: LiveServer, key: str, **more: object) -> httpx.Response:
    with server.client(**keyed(key)) as client:
        return client.post(CHAT, json={**BODY, **more})


def shared(server: LiveServer, key: str, **more: object) -> httpx.Response:
    """The answer, once its replica has handed it to the store."""
    eventually(lambda: ask(server, key, **more).status_code != 409)
    return ask(server, key, **more)


def test_an_answer_is_replayed_by_every_replica(pair):
    first, second = pair
    for stream in (False, True):
        key = f"shared-{stream}"
        first.say("from the first")
        second.say("from the second")
        one = ask(first, key, stream=stream)
        eventually(
            lambda key=key, stream=stream: ask(second, key, stream=stream).status_code == 200
        )
        other = ask(second, key, stream=stream)
        assert other.content == one.content
        assert other.headers["content-type"] == one.headers["content-type"]
        assert other.headers["idempotent-replayed"] == "true"
        assert ask(second, key, stream=stream, max_tokens=5).status_code == 422


def test_an_answer_of_a_newer_form_is_refused_and_not_computed_again(pair):
    """As an older server meets it while servers are replaced one by one."""
    first, second = pair
    first.say("from the first")
    kept = ask(first, "newer")
    name = CallName("gold", "newer", "")
    eventually(lambda: ask(second, "newer").status_code == 200)

    async def rewrite(client: Any) -> None:
        await client.hset(f"wm:call:gold:{name.member}", "answer", "Z" + "form of tomorrow")

    first.on_loop(lambda store: store.connection.call(rewrite))
    before = second.model.steps
    refused = ask(second, "newer")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, NOT_KEPT)
    assert "cannot read" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert second.model.steps == before
    assert ask(first, "newer").content == kept.content  # which has it itself


def test_a_call_that_runs_elsewhere_is_409_until_it_is_done(pair):
    first, second = pair
    first.say("on and on ", endless=True, step_seconds=0.005)
    with first.connect(content(max_tokens=100), idempotency_key="far", x_request_id="far.0") as one:
        eventually(lambda: arrivals(first, "far.0"))
        again = {"ignore_eos": True, "seed": 0, "max_tokens": 100}
        refused = ask(second, "far", **again)
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "idempotent_call_running"
        assert int(refused.headers["retry-after-ms"]) >= 100
        _, answer = read(one)
    assert shared(second, "far", **again).content == answer


def test_a_replica_that_was_held_up_for_too_long_replays_what_all_others_do(pair):
    """Its claim ran out meanwhile, and another replica computed the answer."""
    first, second = pair
    first.say("from the first")
    second.say("from the second")
    with (
        first.model.held(),
        first.connect(content(max_tokens=9), idempotency_key="late") as one,
    ):
        eventually(lambda: first.model.stuck)
        record = f"wm:call:gold:{CallName('gold', 'late', '').member}"
        first.on_loop(lambda store: store.connection.call(lambda client: client.delete(record)))
        answer = ask(second, "late", ignore_eos=True, seed=0, max_tokens=9)
        assert answer.status_code == 200
        eventually(lambda: second.on_loop(lambda store: done(store, record)))
        first.model.running.set()
        assert read(one)[1] != answer.content  # its caller was promised no other
    eventually(
        lambda: ask(first, "late", ignore_eos=True, seed=0, max_tokens=9).content == answer.content
    )


async def done(store: Store, record: str) -> bool:
    return await store.connection.call(lambda client: client.hget(record, "state")) == "DONE"


def test_with_the_store_away_a_key_holds_on_its_own_replica(pair, valkey):
    first, _ = pair
    first.say("still here")
    assert ask(first, "warm").status_code == 200
    valkey.stop()
    try:
        one = ask(first, "away")
        again = ask(first, "away")
    finally:
        valkey.start()
    assert one.status_code == 200
    assert again.content == one.content
    assert again.headers["idempotent-replayed"] == "true"


def test_what_a_replica_keeps_itself_is_bounded(pair, monkeypatch):
    first, _ = pair
    first.say("kept")
    monkeypatch.setattr(kept_answers, "MOST_BYTES", 3000)  # two or three
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: ask(first, f"b{n}"), range(12)))
    assert {answer.status_code for answer in answers} == {200}
    for number, answer in enumerate(answers):  # the others are the store's
        eventually(lambda n=number, a=answer: ask(first, f"b{n}").content == a.content)
