"""However a call ends, its place is free again, and it has paid for what was computed."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from opentelemetry.sdk.trace.export import SpanExportResult

from engine.host.engine import HostConfig
from engine.runtime.text.codec import TextCodec
from gateway.answer import Answer
from telemetry.events import Cause, SequenceEnded
from tenants.model import Tenant
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually, live_server

pytestmark = pytest.mark.model  # the text is that of the default model

BUDGET = 1_000_000
PATH = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": HELLO, "max_tokens": 1500, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(codec: TextCodec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    host = HostConfig(max_buffered_tokens=500)
    with live_server(codec, tmp_path_factory.mktemp("valkey"), host=host) as server:
        server.say("on and on ", endless=True, step_seconds=0.002)
        yield server
        server.assert_idle()


def ask(server: LiveServer, name: str, headers: dict[str, str], **more: object) -> httpx.Response:
    with server.client(name) as client:
        return client.post(PATH, json=BODY | more, headers=headers)


def complete(server, name, headers, _):
    assert ask(server, name, headers, max_tokens=20).status_code == 200


def found_a_stop_string(server, name, headers, _):
    answer = ask(server, name, headers, stop=[" on"])
    assert answer.json()["choices"][0]["finish_reason"] == "stop"


def past_its_deadline(server, name, headers, _):
    assert ask(server, name, headers | {"x-timeout-ms": "300"}).status_code == 504


def taken_in_part(server, name, headers, _):
    server.on_loop(lambda store: store.update_tenant(name, on_expiry="partial"))
    answer = ask(server, name, headers | {"x-timeout-ms": "300"})
    assert answer.json()["choices"][0]["partial"] is True


def with_sinks_that_are_slow(server, name, headers, monkeypatch):
    """The log's and the traces'."""

    class Slow(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            time.sleep(0.05)

    def export(_: object) -> SpanExportResult:
        time.sleep(0.5)
        return SpanExportResult.SUCCESS

    handler = Slow()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    logging.getLogger().setLevel(logging.DEBUG)
    monkeypatch.setattr(server.spans, "export", export)
    try:
        assert ask(server, name, headers, max_tokens=20).status_code == 200
    finally:
        logging.getLogger().setLevel(logging.WARNING)


def under_an_idempotency_key(server, name, headers, _):
    keyed = headers | {"idempotency-key": name}
    assert ask(server, name, keyed, max_tokens=20).status_code == 200
    assert ask(server, name, keyed, max_tokens=20).headers["idempotent-replayed"] == "true"


def cancelled(server, name, headers, _):
    task = {"x-task-id": f"task-{name}"}
    answers: list[httpx.Response] = []
    call = threading.Thread(target=lambda: answers.append(ask(server, name, headers | task)))
    call.start()
    eventually(lambda: server.engine.status().load.running == 1)
    with server.client(name) as client:
        client.delete(f"/v1/tasks/task-{name}").raise_for_status()
    call.join()
    assert answers[0].status_code == 499


def hung_up(server, name, headers, _):
    named = {key.replace("-", "_"): value for key, value in headers.items()}
    with server.connect(json.dumps(BODY | {"stream": True}).encode(), name, **named) as connection:
        assert connection.recv(65536)


def read_too_slowly(server, name, headers, _):
    server.tighten(write_timeout=0.3)
    named = {key.replace("-", "_"): value for key, value in headers.items()}
    body = BODY | {"stream": True, "logprobs": True, "top_logprobs": 20}
    with server.connect(json.dumps(body).encode(), name, **named):
        eventually(lambda: server.logged(SequenceEnded, headers["x-request-id"]), 60)
    server.tighten()


def failed_with_the_engine(server, name, headers, _):
    server.model.fault = RuntimeError("the device fell off the bus")
    assert ask(server, name, headers).status_code == 503
    eventually(lambda: server.engine.status().state == "ready")


def failed_in_its_handler(server, name, headers, monkeypatch):
    async def fail(answer: Answer, *_: object) -> None:
        await answer._generation.next()
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Answer, "whole", fail)
    assert ask(server, name, headers).status_code == 500


Way = Callable[[LiveServer, str, dict[str, str], pytest.MonkeyPatch], None]
WAYS: list[Way] = [
    complete,
    found_a_stop_string,
    past_its_deadline,
    taken_in_part,
    with_sinks_that_are_slow,
    under_an_idempotency_key,
    cancelled,
    hung_up,
    read_too_slowly,
    failed_with_the_engine,
    failed_in_its_handler,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_call_that_is_over_has_given_back_its_place_and_paid(server, monkeypatch, way):
    name = way.__name__.replace("_", "-")
    server.add(Tenant(name, concurrency=1, tokens_per_month=BUDGET, requests_per_minute=3))
    way(server, name, {"x-request-id": name}, monkeypatch)
    (end,) = server.ends(name)
    paid = end.prompt_tokens + end.output_tokens
    assert end.cause is not Cause.LENGTH or end.output_tokens == 20
    monkeypatch.undo()
    # A refused call says how all stands, and one more place would have been too many.
    with server.client(name) as client:
        eventually(lambda: client.post(PATH, json={}).status_code == 400)
        told = client.post(PATH, json={}).headers["ratelimit"]
    assert '"concurrency";r=1' in told
    assert f'"tokens_per_month";r={BUDGET - paid};' in told
    assert '"requests_per_minute";r=2;' in told
    assert ask(server, name, {}, max_tokens=1).status_code == 200
