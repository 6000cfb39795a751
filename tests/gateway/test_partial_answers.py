"""Answers that had begun when their deadline passed: errors, or what there is, marked as such."""

import json

import anthropic
import openai
import pytest

from telemetry.events import Cause
from tenants.model import Tenant
from tests.gateway.live import HELLO, MODEL, LiveServer

pytestmark = pytest.mark.model  # the text is that of the default model

CHAT = {"model": MODEL, "messages": HELLO, "max_tokens": 1000}


@pytest.fixture
def endless(server: LiveServer) -> LiveServer:
    """A server whose answers go on for longer than any deadline here."""
    if "partial" not in server.keys:
        server.add(Tenant("partial", on_expiry="partial"))
    server.say("on and on ", endless=True, step_seconds=0.005)
    return server


@pytest.mark.parametrize(
    ("path", "body", "choice"),
    [
        ("/v1/chat/completions", CHAT, lambda answer: answer["choices"][0]),
        ("/v1/completions", CHAT, lambda answer: answer["choices"][0]),
        ("/v1/messages", CHAT, lambda answer: answer),
    ],
)
def test_a_tenant_may_take_what_there_is(endless: LiveServer, path, body, choice) -> None:
    if path == "/v1/completions":
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 1000}
    with endless.client("partial", x_timeout_ms="300") as client:
        response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    ended = choice(answer)
    assert ended["partial"] is True
    assert ended.get("finish_reason", "length") == "length"
    assert ended.get("stop_reason", "max_tokens") == "max_tokens"
    assert "on and on" in response.text
    (end,) = endless.ends(response.headers["x-request-id"])
    usage = answer["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == end.output_tokens > 0
    assert end.cause is Cause.PARTIAL


def test_a_partial_stream_is_complete_for_stock_clients(endless: LiveServer) -> None:
    key = endless.keys["partial"]
    stock = openai.OpenAI(base_url=f"{endless.url}/v1", api_key=key, max_retries=0)
    headers = {"x-timeout-ms": "300"}
    *_, last = stock.chat.completions.create(**CHAT, stream=True, extra_headers=headers)
    assert last.choices[0].finish_reason == "length"
    assert last.choices[0].partial is True
    with anthropic.Anthropic(base_url=endless.url, api_key=key, max_retries=0) as other:
        events = list(other.messages.create(**CHAT, stream=True, extra_headers=headers))
    deltas = [event.delta for event in events if event.type == "message_delta"]
    assert [(delta.stop_reason, delta.partial) for delta in deltas] == [("max_tokens", True)]
    assert events[-1].type == "message_stop"


def test_without_that_choice_it_is_an_error_with_its_usage(endless: LiveServer) -> None:
    with endless.client("gold", x_timeout_ms="300") as client:
        response = client.post("/v1/chat/completions", json=CHAT)
        assert response.status_code == 504
        assert response.json()["error"]["usage"]["completion_tokens"] > 0
        lines = client.post("/v1/chat/completions", json={**CHAT, "stream": True}).text
    *_, last = [line for line in lines.split("\n\n") if line]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    assert '"partial"' not in lines


def test_nothing_begun_is_nothing_partial(endless: LiveServer) -> None:
    with endless.occupied(), endless.client("partial", x_timeout_ms="200") as client:
        response = client.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 504
    assert response.json()["error"]["usage"]["completion_tokens"] == 0
