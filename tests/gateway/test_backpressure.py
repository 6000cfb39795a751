"""What an orchestrator is told of its own tenant, once and as a stream; and who has to give way."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from engine.runtime.text.codec import TextCodec
from gateway.backpressure import MOST_OF_A_TENANT
from tenants.model import Tenant
from tests.gateway.live import HELLO, MODEL, PLAIN, LiveServer, eventually, live_server, read

pytestmark = pytest.mark.model  # the text is that of the default model

PATH = "/v1/backpressure"
EVENTS = {"accept": "text/event-stream"}


def state(server: LiveServer, key: str = "bronze") -> dict:
    with server.client(key) as client:
        response = client.get(PATH)
    assert response.status_code == 200
    return response.json()


def model_state(server: LiveServer, key: str = "bronze") -> dict:
    (model,) = state(server, key)["models"]
    return model


def events(stream: httpx.Response) -> Iterator[dict]:
    for line in stream.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def test_an_idle_server_tells_its_bounds(server):
    told = state(server, "small")
    assert (told["object"], told["tenant"], told["draining"]) == ("backpressure", "small", False)
    (model,) = told["models"]
    assert model == {
        "model": MODEL,
        "state": "ready",
        "running_requests": 0,
        "queued_requests": 0,
        "queued_tokens": 0,
        "max_queued_requests": 1,
        "max_queued_tokens": 500_000,
        "promised_requests": 0,
        "estimated_start_ms": 0,
        "estimated_call_ms": model["estimated_call_ms"],
        "token_debt": 0,
        "feasible_parallelism": model["feasible_parallelism"],
        "retry_after_ms": None,
    }
    assert 1 <= model["feasible_parallelism"] <= 8


def test_each_tenant_is_told_its_own_queue(server):
    server.say("on and on ", endless=True, step_seconds=0.002)
    with server.occupied(8), server.occupied(3, "gold", max_tokens=50):
        eventually(lambda: model_state(server, "gold")["queued_requests"] == 3)
        gold, bronze = (model_state(server, key) for key in ("gold", "bronze"))
        assert (gold["running_requests"], gold["queued_tokens"] > 0) == (0, True)
        assert (bronze["running_requests"], bronze["queued_requests"]) == (8, 0)
        # Weight 3 to 1, and gold wants as much as it can get; bronze has eight.
        assert gold["feasible_parallelism"] == 6
        assert bronze["feasible_parallelism"] == 5  # gold has three
        assert gold["token_debt"] == 0  # nobody else waits
        eventually(lambda: model_state(server)["token_debt"] > 0)
        # A key that may look and spend nothing looks as its tenant.
        assert model_state(server, "reader")["queued_requests"] == 3


def test_limits_are_told_with_what_is_left_of_them(server):
    limits = {"requests_per_minute": 5, "money_per_day": 2.5}
    server.on_loop(lambda store: store.create_tenant(Tenant("limited", **limits)))
    server.keys["limited"] = server.on_loop(lambda store: store.create_key("limited")).raw
    untouched = [(one["amount"], one["remaining"]) for one in state(server, "limited")["limits"]]
    assert untouched == [(5, 5), (2.5, 2.5)]
    with server.client("limited") as client:
        client.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO})
    requests, money = state(server, "limited")["limits"]
    assert (requests["limit"], requests["amount"]) == ("requests_per_minute", 5)
    assert requests["remaining"] == 4
    assert 0 < requests["reset_ms"] <= 12_000
    assert (money["limit"], money["amount"]) == ("money_per_day", 2.5)
    assert 0 < money["remaining"] <= 2.5


def test_a_full_queue_says_when_to_come_back(server):
    server.say("on and on ", endless=True, step_seconds=0.002)
    with server.occupied(8), server.occupied(1, "small", max_tokens=5):
        eventually(lambda: model_state(server, "small")["retry_after_ms"])
        with server.client("small") as client:
            refused = client.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO})
        assert refused.json()["error"]["code"] == "queue_full"
        assert model_state(server, "gold")["retry_after_ms"] is None


def test_a_stream_tells_changes_and_ends_with_its_caller(server):
    server.say("on and on ", endless=True, step_seconds=0.002)
    with server.client("bronze", **EVENTS) as client, client.stream("GET", PATH) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        told = events(stream)
        assert next(told)["models"][0]["running_requests"] == 0
        with server.occupied(2):
            while next(told)["models"][0]["running_requests"] != 2:
                pass
        while next(told)["models"][0]["running_requests"]:
            pass
    with server.client("bronze", **EVENTS) as client:
        for _ in range(MOST_OF_A_TENANT + 1):  # each gives its place back
            eventually(lambda: not _is_full(client))


def _is_full(client: httpx.Client) -> bool:
    with client.stream("GET", PATH) as stream:
        return stream.status_code == 429


def test_silence_is_filled_with_comments(server):
    server.tighten(keepalive=0.3)
    with server.client(**EVENTS) as client, client.stream("GET", PATH) as stream:
        lines = (line for line in stream.iter_lines() if line)
        assert next(lines).startswith("data: {")
        assert next(lines) == ": keep-alive"


@pytest.mark.parametrize(("own", "told"), [(None, 3), (2, 2), (7, 3)])
def test_no_more_can_run_than_may_be_open(server, own, told):
    """The batch has eight places."""
    server.tighten(max_tenant_requests=3)
    name = f"open-{own or 0}"
    server.on_loop(lambda store: store.create_tenant(Tenant(name, concurrency=own)))
    server.keys[name] = server.on_loop(lambda store: store.create_key(name)).raw
    assert model_state(server, name)["feasible_parallelism"] == told


def test_a_window_that_passes_is_no_change(server):
    server.tighten(keepalive=0.7)  # longer than it is from one look to the next
    server.on_loop(lambda store: store.create_tenant(Tenant("daily", tokens_per_day=100_000)))
    server.keys["daily"] = server.on_loop(lambda store: store.create_key("daily")).raw
    with server.client("daily") as client:
        client.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO})
    with server.client("daily", **EVENTS) as client, client.stream("GET", PATH) as stream:
        lines = (line for line in stream.iter_lines() if line)
        (budget,) = json.loads(next(lines).removeprefix("data: "))["limits"]
        assert budget["reset_ms"] > 0
        assert [next(lines), next(lines)] == [": keep-alive"] * 2


def test_streams_of_a_tenant_are_bounded(server):
    with (
        server.client("strict", **EVENTS) as client,
        server.client("small", **EVENTS) as other,
        ExitStack() as stack,
    ):
        for _ in range(MOST_OF_A_TENANT):
            stream = stack.enter_context(client.stream("GET", PATH))
            assert stream.status_code == 200
        refused = client.get(PATH)
        assert refused.status_code == 429
        assert refused.json()["error"]["limit_requests"] == MOST_OF_A_TENANT
        assert refused.headers["retry-after"]
        with other.stream("GET", PATH) as stream:
            assert stream.status_code == 200


def test_a_stream_ends_when_its_key_does(server):
    issued = server.on_loop(lambda store: store.create_key("gold"))
    server.keys["passing"] = issued.raw
    with server.client("passing", **EVENTS) as client, client.stream("GET", PATH) as stream:
        told = events(stream)
        assert next(told)["tenant"] == "gold"
        server.on_loop(lambda store: store.revoke_key(issued.key.public_id))
        *_, last = told
        assert (last["error"]["code"], last["error"]["reason"]) == ("invalid_api_key", "revoked")


def test_a_draining_server_says_so_and_ends_its_streams(server):
    with server.client(**EVENTS) as client, client.stream("GET", PATH) as stream:
        told = events(stream)
        assert next(told)["draining"] is False
        server.change(draining=True)
        *_, last = told
    assert last["draining"] is True
    assert last["models"][0]["retry_after_ms"] == 5000
    assert state(server)["draining"] is True


def test_only_keys_are_told(server):
    assert httpx.get(server.url + PATH).status_code == 401
    with server.client("elsewhere") as client:  # for another model alone
        assert client.get(PATH).json()["models"] == []
        assert client.post(PATH).status_code == 405


@pytest.fixture
def dropping(codec: TextCodec, tmp_path: Path) -> Iterator[LiveServer]:
    """A server that gives up waiters which can no longer be in time."""
    policy = replace(PLAIN, admission=replace(PLAIN.admission, drop_hopeless=True))
    with live_server(codec, tmp_path, policy=policy) as server:
        yield server


def test_a_waiter_that_became_hopeless_is_told_so_before_its_deadline(dropping):
    dropping.say("on and on ", endless=True, step_seconds=0.01)
    dropping.model.duration = lambda _: 50_000_000  # several steps in what one is thought to take
    with dropping.occupied(8), dropping.client(x_first_token_timeout_ms="600") as client:
        for stream in (False, True):
            body = {"model": MODEL, "messages": HELLO, "stream": stream}
            told = client.post("/v1/chat/completions", json=body)
            assert told.status_code == 429
            error = told.json()["error"]
            assert (error["code"], error["cause"]) == ("deadline_infeasible", "relegated")
            assert told.headers["x-should-retry"] == "false"  # it would be late all the more


@pytest.mark.parametrize("stream", [False, True])
def test_a_displaced_waiter_is_told_to_come_back_before_its_first_token(server, stream):
    server.say("on and on ", endless=True, step_seconds=0.002)
    body = {"model": MODEL, "messages": HELLO, "stream": stream, "max_tokens": 5}
    with server.occupied(8), server.connect(json.dumps(body).encode(), "small") as displaced:
        eventually(lambda: model_state(server, "small")["queued_requests"] == 1)
        body = json.dumps({**body, "stream": False}).encode()
        # The same tenant's call with a deadline stands before it, and there is one place.
        with server.connect(body, "small", x_timeout_ms="60000"):
            head, told = read(displaced)
    assert head.startswith(b"HTTP/1.1 429 ")
    error = json.loads(told)["error"]
    assert (error["code"], error["cause"]) == ("queue_full", "displaced")
    assert error["usage"]["completion_tokens"] == 0
    assert error["retry_after_ms"] >= 1
    assert b"retry-after: " in head.lower()
    assert f"retry-after-ms: {error['retry_after_ms']}".encode() in head.lower()
    assert b"x-should-retry" not in head.lower()
