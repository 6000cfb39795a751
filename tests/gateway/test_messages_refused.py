"""What the Messages API refuses and how it fails: Anthropic's shapes, its clients' reactions."""

import json
from contextlib import ExitStack

import anthropic
import httpx
import pytest

from telemetry.events import Cause, SequenceArrived
from tests.gateway.live import HELLO, MODEL, eventually
from tests.gateway.messages import BODY, PATH, ask, events

pytestmark = pytest.mark.model  # the text is that of the default model


# -- refusals -----------------------------------------------------------------------------------


def error(response: httpx.Response, status: int, kind: str, code: str) -> dict:
    """The error object of a refusal, which is checked to be whole."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert (body["error"]["type"], body["error"]["code"]) == (kind, code)
    assert body["error"]["message"]
    return body["error"]


def test_keys(server):
    def ask_with(**headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(server.url + PATH, json=BODY, headers=named)

    key = server.keys["gold"]
    assert ask_with(x_api_key=key).status_code == 200
    assert ask_with(authorization=f"Bearer {key}").status_code == 200
    bad = ("authentication_error", "invalid_api_key")
    assert error(ask_with(), 401, *bad)["reason"] == "missing"
    assert error(ask_with(x_api_key=""), 401, *bad)["reason"] == "missing"
    assert error(ask_with(x_api_key="sk-ant-x"), 401, *bad)["reason"] == "malformed"
    for name in ("unknown", "revoked"):
        response = ask_with(x_api_key=server.keys[name])
        assert error(response, 401, *bad)["reason"] == name
        assert server.keys[name].rsplit("-", 1)[1] not in response.text
    admin = ask_with(x_api_key=server.keys["reader"])
    error(admin, 403, "permission_error", "insufficient_scope")
    elsewhere = ask_with(x_api_key=server.keys["elsewhere"])
    error(elsewhere, 404, "not_found_error", "model_not_found")
    models = httpx.get(f"{server.url}/v1/models", headers={"x-api-key": key})
    assert models.status_code == 200  # the same key everywhere


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff"])
def test_malformed_bodies(anthropic_client, body):
    error(anthropic_client.post(PATH, content=body), 400, "invalid_request_error", "invalid_json")


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
USER = {"role": "user"}


@pytest.mark.parametrize(
    ("more", "code", "param"),
    [
        ({"wibble": 1}, "unknown_parameter", "wibble"),
        ({"n": 2}, "unknown_parameter", "n"),
        ({"stop": "x"}, "unknown_parameter", "stop"),
        ({"tools": [{"name": "f"}]}, "unsupported_parameter", "tools"),
        ({"thinking": {"type": "adaptive"}}, "unsupported_parameter", "thinking"),
        ({"cache_control": {"type": "ephemeral"}}, "unsupported_parameter", "cache_control"),
        ({"max_tokens": None}, "invalid_value", "max_tokens"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": 2048}, "invalid_value", "max_tokens"),
        ({"temperature": 1.5}, "invalid_value", "temperature"),
        ({"top_k": -1}, "invalid_value", "top_k"),
        ({"top_p": 1.1}, "invalid_value", "top_p"),
        ({"stop_sequences": "x"}, "invalid_value", "stop_sequences"),
        ({"stop_sequences": ["ok", ""]}, "invalid_value", "stop_sequences[1]"),
        ({"stop_sequences": ["x"] * 17}, "invalid_value", "stop_sequences"),
        ({"system": 5}, "invalid_value", "system"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "tool", "content": ""}]}, "invalid_value", "messages[0].role"),
        ({"messages": [USER]}, "invalid_value", "messages[0].content"),
        ({"messages": [USER | {"content": [5]}]}, "invalid_value", "messages[0].content"),
        (
            {"messages": [USER | {"content": [IMAGE]}]},
            "unsupported_parameter",
            "messages[0].content",
        ),
        ({"messages": [USER | {"content": "", "name": "a"}]}, "unknown_parameter", None),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": "Well, "}]},
            "unsupported_parameter",
            "messages",
        ),
        (
            {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
            "unsupported_parameter",
            "system[].cache_control",
        ),
        (
            {"messages": [USER | {"content": [{"type": "text", "text": "x", "wibble": 1}]}]},
            "unknown_parameter",
            "messages[].content[].wibble",
        ),
    ],
)
def test_what_is_not_served_is_refused_by_name(anthropic_client, server, more, code, param):
    response = ask(anthropic_client, **more)
    assert error(response, 400, "invalid_request_error", code)["param"] == (
        param or "messages[].name"
    )
    server.flush()
    assert not server.logged(SequenceArrived, response.headers["request-id"])


def test_max_tokens_is_required(anthropic_client):
    response = anthropic_client.post(PATH, json={"model": MODEL, "messages": HELLO})
    body = error(response, 400, "invalid_request_error", "invalid_value")
    assert (body["param"], body["message"]) == ("max_tokens", "'max_tokens' is required.")


def test_values_that_ask_for_nothing_pass(anthropic_client):
    nothing = {
        "tools": [],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"},
        "cache_control": None,
        "service_tier": "auto",
        "stop_sequences": [],
        "speed": "standard",
    }
    assert ask(anthropic_client, **nothing).status_code == 200


def test_prompts_over_the_context(anthropic_client):
    messages = [{"role": "user", "content": "word " * 3000}]
    response = ask(anthropic_client, messages=messages)
    body = error(response, 400, "invalid_request_error", "context_length_exceeded")
    assert body["context_tokens"] == 2048


def test_bodies_that_are_too_large(anthropic_client, server):
    server.tighten(max_body_bytes=1000)
    response = anthropic_client.post(PATH, content=b"x" * 5000)
    assert error(response, 413, "request_too_large", "body_too_large")["limit_bytes"] == 1000


def test_the_routers_own_refusals(anthropic_client):
    error(anthropic_client.get(PATH), 405, "invalid_request_error", "method_not_allowed")
    error(anthropic_client.post(f"{PATH}/batches"), 404, "not_found_error", "not_found")
    others = anthropic_client.get("/v1/messagesx").json()
    assert set(others) == {"error"}  # OpenAI's shape


def test_request_ids_are_echoed(anthropic_client):
    for response in (ask(anthropic_client), ask(anthropic_client, stream=True)):
        assert response.headers["request-id"] == response.headers["x-request-id"]
    mine = anthropic_client.post(PATH, json=BODY, headers={"x-request-id": "mine-1"})
    assert mine.headers["request-id"] == "mine-1"


# -- load, deadlines and failures ---------------------------------------------------------------


def assert_says_when(response: httpx.Response) -> None:
    milliseconds = int(response.headers["retry-after-ms"])
    assert int(response.headers["retry-after"]) - 1 < milliseconds / 1000
    assert response.json()["error"]["retry_after_ms"] == milliseconds
    assert "x-should-retry" not in response.headers


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue(server, stream):
    server.say("so it goes ", endless=True, step_seconds=0.01)
    waiting = json.dumps({"model": MODEL, "messages": HELLO}).encode()
    with server.occupied(8), server.connect(waiting, "small"):
        eventually(lambda: server.engine.status().load.waiting == 1)
        with server.client("small") as client:
            response = ask(client, stream=stream, max_tokens=5)
    assert error(response, 429, "rate_limit_error", "queue_full")["cause"] == "queue_full"
    assert_says_when(response)


def test_a_full_server(anthropic_client, server):
    server.say("so it goes ", endless=True, step_seconds=0.002)
    with server.occupied(20, "bronze"), server.occupied(10, "gold"):
        response = ask(anthropic_client)
    error(response, 529, "overloaded_error", "saturated")
    assert_says_when(response)


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_that_passes_in_the_middle(anthropic_client, server, stream):
    server.say("so it goes ", endless=True, step_seconds=0.005)
    headers = {"x-timeout-ms": "200"}
    request = {**BODY, "max_tokens": 1000, "stream": stream}
    response = anthropic_client.post(PATH, json=request, headers=headers)
    if stream:
        last = events(response)[-1]
        assert last["type"] == "error"
        assert last["request_id"] == response.headers["request-id"]
        failed = last["error"]
        assert (failed["type"], failed["code"]) == ("timeout_error", "deadline_exceeded")
    else:
        failed = error(response, 504, "timeout_error", "deadline_exceeded")
        assert response.headers["x-should-retry"] == "false"
    usage = failed["usage"]
    assert usage["output_tokens"] > 0
    prompt = len(server.codec.encode_chat(HELLO))
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == prompt


def test_an_engine_that_dies_in_mid_stream_is_an_error_event(stock_anthropic, server):
    server.say("so it goes ", endless=True, step_seconds=0.002)
    stream = iter(stock_anthropic.messages.create(**{**BODY, "max_tokens": 1000}, stream=True))
    while next(stream).type != "content_block_delta":
        pass
    server.model.fault = RuntimeError("the device fell off the bus")
    with pytest.raises(anthropic.APIStatusError) as caught:
        list(stream)
    assert caught.value.body["error"]["type"] == "overloaded_error"
    assert caught.value.body["error"]["code"] == "engine_restarting"
    assert "bus" not in str(caught.value)
    eventually(lambda: server.engine.status().state == "ready")


def test_an_unexpected_failure_is_an_api_error_without_details(
    anthropic_client, server, monkeypatch
):
    def explode(*_):
        raise RuntimeError("secret")

    monkeypatch.setattr(server.engine, "generate", explode)
    response = ask(anthropic_client)
    error(response, 500, "api_error", "internal_error")
    assert "secret" not in response.text


def test_hanging_up_stops_the_work(anthropic_client, server):
    server.say("so it goes ", endless=True, step_seconds=0.002)
    headers = {"x-request-id": "left-message"}
    request = {**BODY, "max_tokens": 1500, "stream": True}
    with anthropic_client.stream("POST", PATH, json=request, headers=headers) as response:
        next(response.iter_raw())
    (end,) = server.ends("left-message")
    assert end.cause is Cause.DISCONNECTED
    assert 0 < end.output_tokens < 1500


def test_a_cancelled_task_ends_its_messages(anthropic_client, server):
    server.say("so it goes ", endless=True, step_seconds=0.002)
    headers = {"x-task-id": "dropped-messages"}
    request = {**BODY, "max_tokens": 1500, "stream": True}
    with anthropic_client.stream("POST", PATH, json=request, headers=headers) as response:
        lines = response.iter_lines()
        next(lines)
        with server.client() as other:
            other.delete("/v1/tasks/dropped-messages").raise_for_status()
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    last = json.loads(data[-1])
    assert (last["type"], last["error"]["code"]) == ("error", "cancelled")
    late = anthropic_client.post(PATH, json=BODY, headers=headers)
    error(late, 499, "invalid_request_error", "cancelled")
    assert late.headers["x-should-retry"] == "false"


# -- the stock client ---------------------------------------------------------------------------


def test_the_stock_client_waits_as_told_and_succeeds(server):
    statuses = []

    def note(response) -> None:
        statuses.append(response.status_code)
        busy.close()
        eventually(lambda: server.gateway.slots.held == 0)

    server.say("so it goes ", endless=True, step_seconds=0.002)
    with (
        ExitStack() as busy,
        anthropic.Anthropic(
            base_url=server.url,
            api_key=server.keys["bronze"],
            http_client=anthropic.DefaultHttpxClient(event_hooks={"response": [note]}),
            max_retries=1,
        ) as stock,
    ):
        busy.enter_context(server.occupied(20, "bronze"))
        answer = stock.messages.create(model=MODEL, max_tokens=5, messages=HELLO)
    assert answer.usage.output_tokens == 5
    assert statuses == [429, 200]


def test_the_stock_client_does_not_retry_what_is_hopeless(server):
    tried = []
    counting = anthropic.DefaultHttpxClient(event_hooks={"request": [tried.append]})
    with (
        anthropic.Anthropic(
            base_url=server.url, api_key=server.keys["gold"], http_client=counting
        ) as stock,
        pytest.raises(anthropic.APIStatusError) as caught,
    ):
        stock.messages.create(**BODY, extra_headers={"x-deadline": "2020-01-01T00:00:00Z"})
    assert caught.value.status_code == 504
    assert caught.value.body["error"]["type"] == "timeout_error"
    assert len(tried) == 1


def test_the_stock_client_understands_refusals(stock_anthropic):
    with pytest.raises(anthropic.BadRequestError) as caught:
        stock_anthropic.messages.create(
            **BODY, tools=[{"name": "f", "input_schema": {"type": "object"}}]
        )
    assert caught.value.body["error"]["param"] == "tools"
    assert caught.value.request_id == caught.value.body["request_id"]
    with pytest.raises(anthropic.NotFoundError):
        stock_anthropic.messages.create(**{**BODY, "model": "none"})
    with pytest.raises(anthropic.AuthenticationError):
        stock_anthropic.with_options(api_key="wm-nope").messages.create(**BODY)
