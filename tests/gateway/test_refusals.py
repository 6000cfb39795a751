"""What is not served: the right status and body, quickly, and at nobody's expense."""

import gzip
import json
import logging
import time

import httpx
import openai
import pytest

from telemetry.events import Cause, SequenceArrived, StepPlanned
from tests.gateway.live import HELLO, MODEL, eventually

pytestmark = pytest.mark.model  # the text is that of the default model

BODY = {"model": MODEL, "messages": HELLO}
PATHS = ["/v1/chat/completions", "/v1/completions"]


def error(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert response.headers["x-server-time"]
    body = response.json()["error"]
    assert {"message", "type", "param", "code"} <= set(body)
    return body


def chat(client: httpx.Client, **more) -> httpx.Response:
    return client.post("/v1/chat/completions", json={**BODY, **more})


# -- who may --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method_path",
    [
        ("POST", PATHS[0]),
        ("POST", PATHS[1]),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/x"),
        ("DELETE", "/v1/tasks/t"),
    ],
)
@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (None, "missing"),
        ("Basic abc", "missing"),
        ("Bearer", "missing"),
        ("Bearer sk-nonsense", "malformed"),
        ("unknown", "unknown"),
        ("revoked", "revoked"),
    ],
)
def test_bad_keys_are_401(server, method_path, header, reason):
    header = f"Bearer {server.keys[header]}" if header in server.keys else header
    headers = {"authorization": header} if header is not None else {}
    response = httpx.request(*_absolute(server, method_path), headers=headers, json=BODY)
    body = error(response, 401)
    assert (body["code"], body["reason"]) == ("invalid_api_key", reason)
    assert response.headers["www-authenticate"] == "Bearer"
    if header and "wm-" in header:
        assert header.rsplit("-", 1)[1] not in response.text


def _absolute(server, method_path):
    method, path = method_path
    return method, server.url + path


def test_a_key_without_the_scope_is_403(server):
    with server.client("reader") as client:
        assert error(chat(client), 403)["code"] == "insufficient_scope"


def test_a_key_pasted_where_none_belongs_is_not_repeated(server):
    key = server.keys["bronze"]
    with server.client() as client:
        answers = [
            chat(client, model=key),
            chat(client, **{key: 1}),
            client.get(f"/v1/models/{key}"),
            client.get(f"/v1/tasks/{key}"),
            client.get(f"/{key}"),
            *(
                client.get("/v1/models", headers={name: key})
                for name in ("x-request-id", "x-task-id")
            ),
            client.post(
                "/v1/chat/completions",
                json={"model": MODEL, "messages": HELLO},
                headers={"x-task-id": key},
            ),
        ]
    for answer in answers:
        assert key.split("-")[2] not in answer.text
        assert key.split("-")[2] not in str(answer.headers)
    assert answers[-1].status_code == 400


def test_models_not_there_and_not_allowed_answer_the_same(server):
    with server.client() as client, server.client("elsewhere") as other:
        missing = error(chat(client, model="other"), 404)
        forbidden = error(chat(other), 404)
    assert missing["code"] == forbidden["code"] == "model_not_found"
    assert missing["message"].replace("other", MODEL) == forbidden["message"]


# -- what is asked --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", PATHS[0], 405),
        ("PUT", "/v1/models", 405),
        ("DELETE", "/v1/tasks/a/b", 404),
    ],
)
def test_the_routers_own_refusals_have_our_shape(server, method, path, status):
    response = httpx.request(method, server.url + path)
    error(response, status)
    assert ("allow" in response.headers) == (status == 405)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_malformed_bodies_are_400(server, path, body):
    with server.client() as client:
        assert error(client.post(path, content=body), 400)["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_tokens": 10**15}, "max_tokens"),
        ({"max_completion_tokens": 10**15}, "max_completion_tokens"),
        ({"max_tokens": 2040}, "max_tokens"),
        ({"n": 5_000_000}, "n"),
        ({"top_logprobs": 1_000_000_000, "logprobs": True}, "top_logprobs"),
        ({"stop": ["x"] * 5000}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": ""}]}, "messages[0].role"),
        ({"logit_bias": {"999999999": 1}}, "logit_bias"),
        ({"stop_token_ids": [999_999]}, "stop_token_ids"),
        ({"tools": [{}]}, "tools"),
        ({"wibble": 1}, "wibble"),
    ],
)
def test_bad_parameters_are_400_quickly_and_reach_no_engine(server, more, param):
    with server.client(x_request_id=f"bad-{abs(hash(str(more)))}") as client:
        began = time.perf_counter()
        response = chat(client, **more)
        assert time.perf_counter() - began < 1
        assert error(response, 400)["param"] == param
        server.flush()
        assert not server.logged(SequenceArrived, response.headers["x-request-id"])


def test_prompts_over_the_context_are_400(server):
    with server.client() as client:
        body = error(chat(client, messages=[{"role": "user", "content": "word " * 3000}]), 400)
        assert body["code"] == "context_length_exceeded"
        assert body["context_tokens"] == 2048
        request = {"model": MODEL, "prompt": [5] * 2048}
        body = error(client.post("/v1/completions", json=request), 400)
        assert (body["code"], body["prompt_tokens"]) == ("context_length_exceeded", 2048)


@pytest.mark.parametrize(
    "prompt", [[], [-1], [1.5], [True], [10**9], ["a", "b"], [[1], [2]], "", 5]
)
def test_bad_prompts_are_400(server, prompt):
    with server.client() as client:
        response = client.post("/v1/completions", json={"model": MODEL, "prompt": prompt})
        assert error(response, 400)["param"] == "prompt"


@pytest.mark.parametrize("name", ["x-task-id", "x-run-id", "x-attempt-id", "x-request-id"])
def test_malformed_ids_are_400(server, name):
    with server.client() as client:
        response = client.post(PATHS[0], json=BODY, headers={name: "not an id"})
        assert error(response, 400)["param"] == name


# -- bodies -----------------------------------------------------------------------------------


def test_large_bodies_are_413_whether_declared_or_not(server):
    server.tighten(max_body_bytes=1000)

    def pieces():
        for _ in range(100):
            yield b"x" * 1000

    with server.client() as client:
        assert error(client.post(PATHS[0], content=b"x" * 500_000), 413)["limit_bytes"] == 1000
        response = client.post(PATHS[0], content=pieces())
        assert error(response, 413)["code"] == "body_too_large"
        assert response.headers["connection"] == "close"
        assert error(client.post(PATHS[0], content=b" " * 1000), 400)["code"] == "invalid_json"


def test_a_compressed_body_is_told_to_come_as_it_is(server):
    with server.client() as client:
        packed = gzip.compress(json.dumps(BODY).encode())
        for coding in ("gzip", "GZIP, identity"):
            response = client.post(PATHS[0], content=packed, headers={"content-encoding": coding})
            assert error(response, 400)["param"] == "content-encoding"
        plain = client.post(PATHS[0], json=BODY, headers={"content-encoding": "identity"})
        assert plain.status_code == 200


def test_a_body_that_comes_too_slowly_is_408(server):
    server.tighten(body_timeout=0.3)
    with server.connect(b"{", content_length="100") as connection:
        began = time.monotonic()
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert 0.2 < time.monotonic() - began < 5
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "body_timeout"


def test_leave_to_send_a_body_that_is_too_large_is_not_given(server):
    with server.connect(content_length=str(1 << 40), expect="100-continue") as connection:
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_hanging_up_in_the_middle_of_a_body_frees_the_slot(server):
    with server.connect(b"{", content_length="100"):
        eventually(lambda: server.gateway.slots.held == 1)
    eventually(lambda: server.gateway.slots.held == 0)


# -- deadlines --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["0", "-1", "NaN", "292277-01-01T00:00:00Z", "tomorrow", "99999999999999999999"]
)
@pytest.mark.parametrize("name", ["x-deadline", "x-first-token-deadline", "x-timeout-ms"])
def test_nonsense_for_a_deadline_is_400(server, name, value):
    with server.client() as client:
        response = client.post(PATHS[0], json=BODY, headers={name: value})
        body = error(response, 400)
        assert (body["code"], body["param"]) == ("invalid_header", name)


@pytest.mark.parametrize("name", ["x-deadline", "x-first-token-deadline"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_in_the_past_is_504_at_once(server, name, stream):
    with server.client(x_request_id=f"past-{name}-{stream}") as client:
        response = client.post(
            PATHS[0], json={**BODY, "stream": stream}, headers={name: "2020-01-01T00:00:00Z"}
        )
        assert error(response, 504)["code"] == "deadline_exceeded"
        assert response.headers["x-should-retry"] == "false"
        server.flush()
        assert not server.logged(SequenceArrived, response.headers["x-request-id"])


@pytest.mark.parametrize("name", ["x-timeout-ms", "x-first-token-timeout-ms"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_that_passes_in_the_queue_is_504_without_a_forward_pass(server, name, stream):
    server.say("so it goes ", endless=True, step_seconds=0.002)
    with server.occupied(), server.client(x_request_id=f"queued-{name}-{stream}") as client:
        response = client.post(PATHS[0], json={**BODY, "stream": stream}, headers={name: "150"})
    body = error(response, 504)
    assert body["code"] == "deadline_exceeded"
    assert body["usage"]["total_tokens"] == 0  # nobody pays for a prompt that was not looked at
    assert response.headers["x-should-retry"] == "false"
    (end,) = server.ends(response.headers["x-request-id"])
    assert end.cause in {Cause.DEADLINE, Cause.FIRST_TOKEN_DEADLINE}
    assert end.admitted is None
    planned = [event for event in server.events.snapshot() if isinstance(event, StepPlanned)]
    assert not any(end.sequence in event.sequences for event in planned)


def test_a_deadline_in_mid_decode(server):
    server.say("so it goes ", endless=True, step_seconds=0.005)
    with server.client(x_timeout_ms="200") as client:
        response = chat(client, ignore_eos=True)
        body = error(response, 504)
        assert body["usage"]["completion_tokens"] > 0
        assert body["usage"]["prompt_tokens"] > 0
        assert response.headers["x-should-retry"] == "false"
        streamed = chat(client, ignore_eos=True, stream=True)
    assert streamed.status_code == 200
    assert "[DONE]" not in streamed.text
    last = json.loads(streamed.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == "deadline_exceeded"
    assert last["error"]["usage"]["completion_tokens"] > 0


def test_a_tenants_default_and_ceiling_of_time(server):
    server.say("so it goes ", endless=True, step_seconds=0.005)
    with server.client("hasty") as client:
        for headers, seconds in (({}, 0.2), ({"x-timeout-ms": "60000"}, 0.4)):
            began = time.monotonic()
            error(client.post(PATHS[0], json={**BODY, "ignore_eos": True}, headers=headers), 504)
            assert seconds <= time.monotonic() - began < seconds + 1


def test_the_first_timeout_of_a_task_wins(server):
    server.say("so it goes ", endless=True, step_seconds=0.005)
    with server.client(x_task_id="retried", x_timeout_ms="150") as client:
        error(chat(client, ignore_eos=True), 504)
        began = time.monotonic()
        response = chat(client, ignore_eos=True)
        assert time.monotonic() - began < 0.1
        assert error(response, 504)["code"] == "deadline_exceeded"


# -- load -------------------------------------------------------------------------------------


def assert_says_when(response: httpx.Response) -> None:
    seconds = int(response.headers["retry-after"])
    milliseconds = int(response.headers["retry-after-ms"])
    assert 1 <= seconds <= 60
    assert seconds - 1 < milliseconds / 1000 <= seconds


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_429(server, stream):
    server.say("so it goes ", endless=True, step_seconds=0.01)
    with server.occupied(8), server.connect(json.dumps(BODY).encode(), "small"):
        eventually(lambda: server.engine.status().load.waiting == 1)
        with server.client("small") as client:
            response = chat(client, stream=stream)
    body = error(response, 429)
    assert (body["code"], body["cause"]) == ("queue_full", "queue_full")
    assert_says_when(response)


def test_open_requests_are_bounded_for_each_tenant_and_in_all(server):
    server.say("so it goes ", endless=True, step_seconds=0.002)
    with server.client("bronze") as bronze, server.client("gold") as gold:
        with server.occupied(20, "bronze"):
            response = chat(bronze)
            assert error(response, 429)["code"] == "rate_limit_exceeded"
            assert_says_when(response)
            # A bad request takes no place, and answers as it always does.
            assert chat(gold, n=0).status_code == 400
            with server.occupied(10, "gold"):
                response = chat(gold)
                assert error(response, 503)["code"] == "saturated"
                assert_says_when(response)
        eventually(lambda: server.gateway.slots.held == 0)
        server.say("free again")
        assert chat(bronze).status_code == 200


def test_a_draining_server_refuses_new_work_and_goes_on_with_old(server):
    server.say("so it goes " * 30, step_seconds=0.005)
    with (
        server.client() as client,
        client.stream("POST", PATHS[0], json={**BODY, "stream": True}) as running,
        server.client() as late,
    ):
        lines = running.iter_lines()
        next(lines)
        server.change(draining=True)
        response = chat(late)
        ready = late.get("/ready")
        health = late.get("/health")
        rest = list(lines)
    assert health.status_code == 200
    # whoever tries again finds another server, where a balancer spreads connections
    assert {answer.headers["connection"] for answer in (response, ready, health)} == {"close"}
    assert "connection" not in running.headers
    assert error(response, 503)["code"] == "draining"
    assert_says_when(response)
    assert error(ready, 503)["code"] == "draining"
    assert_says_when(ready)
    assert rest[-2:] == ["data: [DONE]", ""]


def test_a_draining_server_lets_a_body_come_in_before_it_closes(server):
    server.change(draining=True)
    content = json.dumps({**BODY, "user": "u" * 500}).encode()
    with server.connect(content[:100], content_length=str(len(content) + (1 << 22))) as connection:
        connection.settimeout(20)
        connection.sendall(content[100:] + b" " * (1 << 22))  # closed at once, it would be reset
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 503 ")


# -- the rest ---------------------------------------------------------------------------------


def test_health_readiness_and_metrics_need_no_key(server):
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok", "models": {MODEL: "ready"}}
    assert httpx.get(f"{server.url}/ready").json()["status"] == "ready"
    with server.client() as client:
        chat(client)
    page = httpx.get(f"{server.url}/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE" in page.text
    assert 'tenant="gold"' in page.text


def test_an_unexpected_failure_is_500_without_details(server, caplog, monkeypatch):
    def explode(*_):
        raise RuntimeError(f"secret {server.keys['gold']}")

    monkeypatch.setattr(server.engine, "generate", explode)
    with server.client(x_request_id="doomed") as client, caplog.at_level(logging.ERROR):
        response = chat(client)
    assert error(response, 500)["code"] == "internal_error"
    assert "secret" not in response.text
    assert any("doomed" in record.getMessage() for record in caplog.records)


def test_secrets_appear_in_no_body_and_no_log(server, caplog):
    bodies = []
    with caplog.at_level(logging.DEBUG):
        for key in server.keys:
            with server.client(key) as client:
                bodies += [chat(client).text, chat(client, n=0).text, client.get("/v1/models").text]
                bodies.append(client.post(PATHS[0], content=b"{").text)
    written = "".join(bodies) + "".join(record.getMessage() for record in caplog.records)
    for key in server.keys.values():
        assert key.rsplit("-", 1)[1] not in written


def test_stock_clients_do_not_retry_what_is_hopeless(server):
    tried = []
    counting = httpx.Client(event_hooks={"request": [tried.append]})
    url, key = f"{server.url}/v1", server.keys["gold"]
    with (
        openai.OpenAI(base_url=url, api_key=key, http_client=counting) as stock,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        stock.chat.completions.create(
            model=MODEL, messages=HELLO, extra_headers={"x-deadline": "2020-01-01T00:00:00Z"}
        )
    assert caught.value.status_code == 504
    assert len(tried) == 1
