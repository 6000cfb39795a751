"""Two models: what the preferred one cannot finish in time goes to its fallback, and says so."""

import re
import time
from dataclasses import replace

import pytest
from anthropic import Anthropic, DefaultHttpxClient
from anthropic import RateLimitError as AnthropicRateLimitError
from openai import DefaultHttpxClient as OpenAIHttpxClient
from openai import OpenAI, RateLimitError, UnprocessableEntityError

from telemetry import semconv
from tenants.model import Tenant
from tests.gateway.live import HELLO, MODEL, PLAIN, SMALL, LiveServer, eventually, live_server

pytestmark = pytest.mark.model  # the text is that of the default model

STEP = 0.04  # seconds of the preferred model for each token
TIGHT = 250  # milliseconds: too short for it, not for the fallback
LONG, SHORT = "one two three four five six seven eight nine ten", "Quickly."


@pytest.fixture(scope="module")
def routing(codec, tmp_path_factory):
    """Its preferred model has shown what its steps and its answers take."""
    with live_server(codec, tmp_path_factory.mktemp("valkey"), fallback=True) as server:
        server.small.scripts = [codec.encode(SHORT, add_special=False)]
        server.say(LONG, step_seconds=STEP)
        for _ in range(20):
            assert ask(server, "routed", None) == (MODEL, LONG)
        yield server


@pytest.fixture
def replica(routing):
    """Another server on its store."""
    with LiveServer(routing.store_url, routing.codec, replica_of=routing) as server:
        yield server


def client(server: LiveServer, key: str) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=server.keys[key], max_retries=0)


def ask(server: LiveServer, key: str, timeout_ms: int | None, model: str = MODEL, **headers: str):
    """The model that answered, and its text."""
    if timeout_ms is not None:
        headers["x-timeout-ms"] = str(timeout_ms)
    answer = client(server, key).chat.completions.create(
        model=model, messages=HELLO, extra_headers=headers
    )
    return answer.model, answer.choices[0].message.content


def test_what_would_end_late_is_answered_by_the_fallback(routing):
    assert ask(routing, "routed", 60_000) == (MODEL, LONG)
    began = time.monotonic()
    assert ask(routing, "routed", TIGHT) == (SMALL, SHORT)
    assert time.monotonic() - began < 10 * STEP, "the preferred model was not waited for"


def test_a_stream_is_routed_too_and_names_its_model(routing):
    stream = client(routing, "routed").chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, extra_headers={"x-timeout-ms": str(TIGHT)}
    )
    chunks = list(stream)
    assert {chunk.model for chunk in chunks} == {SMALL}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SHORT


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("auto", [False, True])
def test_headers_say_which_model_answered_instead_and_why(routing, path, stream, auto):
    body = {"model": "auto" if auto else MODEL, "max_tokens": 20, "stream": stream}
    body |= {"prompt": "hi"} if path == "/v1/completions" else {"messages": HELLO}
    with routing.client("strict" if auto else "routed") as caller:
        answers = [
            caller.post(path, json=body, headers={"x-timeout-ms": str(time)})
            for time in (TIGHT, 60_000)
        ]
    told = [
        [answer.headers.get(f"x-watermaster-{what}") for what in ("model", "routed")]
        for answer in answers
    ]
    assert told == [[SMALL, "deadline_infeasible"], [None, None]]


@pytest.mark.parametrize("stream", [False, True])
def test_whoever_is_given_a_kept_answer_is_told_too(routing, replica, stream):
    """By who computed it, by another server that has it from the store, and by who joined."""
    body = {"model": "auto", "messages": HELLO, "stream": stream}
    headers = {"idempotency-key": f"kept-{stream}", "x-timeout-ms": str(TIGHT)}
    for server, replayed in ((routing, None), (routing, "true"), (replica, "true")):
        with server.client("routed") as caller:
            answer = caller.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.headers.get("idempotent-replayed") == replayed
        assert answer.headers["x-watermaster-model"] == SMALL
        assert answer.headers["x-watermaster-routed"] == "deadline_infeasible"
        assert answer.headers["content-type"].startswith("text/event-stream") == stream


@pytest.mark.parametrize("stream", [False, True])
def test_a_kept_answer_of_the_fallback_is_not_for_a_key_without_it(routing, replica, stream):
    """Neither here nor elsewhere; the answer of the model that it may use is."""
    body = {"model": MODEL, "messages": HELLO, "stream": stream}
    for timeout, status in ((TIGHT, 422), (60_000, 200)):
        headers = {"idempotency-key": f"foreign-{stream}-{status}", "x-timeout-ms": str(timeout)}
        with routing.client("routed") as caller:
            caller.post("/v1/chat/completions", json=body, headers=headers).raise_for_status()
        for server in (routing, replica):
            with server.client("preferred") as caller:
                answer = caller.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == status
            assert SHORT not in answer.text


def test_a_trace_says_what_was_asked_first(routing):
    trace = "0af7651916cd43dd8448eb211c80319c"
    ask(routing, "routed", TIGHT, traceparent=f"00-{trace}-b7ad6b7169203331-01")

    def root():
        spans = routing.spans.get_finished_spans()
        found = [span for span in spans if span.name == f"chat {SMALL}"]
        return next((s for s in found if f"{s.context.trace_id:032x}" == trace), None)

    eventually(root)
    assert root().attributes[semconv.RESPONSE_MODEL] == SMALL
    assert root().attributes[semconv.INSTEAD_OF] == MODEL
    assert root().attributes[semconv.ROUTED] == "deadline_infeasible"


def test_a_call_that_was_routed_is_counted_once(routing):
    routes = {"admission": "feasible", "on_infeasible": "route"}
    routing.add(Tenant("counted", tokens_per_day=100_000, **routes))
    calls = client(routing, "counted").chat.completions.with_raw_response
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 20}
    left = 100_000
    for timeout, model in ((TIGHT, SMALL), (60_000, MODEL), (TIGHT, SMALL)):
        answer = calls.create(**asked, extra_headers={"x-timeout-ms": str(timeout)})
        assert answer.parse().model == model
        left -= answer.parse().usage.total_tokens
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) == left


def test_whoever_did_not_choose_it_is_refused(routing):
    """And the stock client, which would try a 429 again, does not."""
    tried = []
    counting = OpenAIHttpxClient(event_hooks={"request": [tried.append]})
    url, key = f"{routing.url}/v1", routing.keys["strict"]
    with (
        OpenAI(base_url=url, api_key=key, http_client=counting) as stock,
        pytest.raises(RateLimitError) as refusal,
    ):
        stock.chat.completions.create(
            model=MODEL, messages=HELLO, extra_headers={"x-timeout-ms": str(TIGHT)}
        )
    assert refusal.value.code == "deadline_infeasible"
    assert len(tried) == 1


def ask_anthropic(server: LiveServer, key: str, timeout_ms: int, tried: list):
    """The model that answered, and its text; every attempt is added to `tried`."""
    counting = DefaultHttpxClient(event_hooks={"request": [tried.append]})
    with Anthropic(base_url=server.url, api_key=server.keys[key], http_client=counting) as stock:
        answer = stock.messages.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=20,
            extra_headers={"x-timeout-ms": str(timeout_ms)},
        )
    return answer.model, answer.content[0].text


def test_messages_are_routed_too(routing):
    assert ask_anthropic(routing, "routed", 60_000, []) == (MODEL, LONG)
    assert ask_anthropic(routing, "routed", TIGHT, []) == (SMALL, SHORT)


def test_the_stock_anthropic_client_does_not_retry_what_cannot_be_in_time(routing):
    tried = []
    with pytest.raises(AnthropicRateLimitError) as refusal:
        ask_anthropic(routing, "strict", TIGHT, tried)
    assert len(tried) == 1
    assert refusal.value.body["error"]["code"] == "deadline_infeasible"
    assert refusal.value.body["error"]["predicted_finish_ms"] > 100


def test_auto_means_the_first_model_that_the_key_may_use(routing):
    issued = routing.on_loop(lambda store: store.create_key("strict", models=[SMALL]))
    routing.keys["small"] = issued.raw
    assert [model.id for model in client(routing, "small").models.list()] == [SMALL]
    assert ask(routing, "small", None, "auto") == (SMALL, SHORT)
    keyed = {"idempotency-key": "auto"}
    assert ask(routing, "strict", None, "auto", **keyed) == (MODEL, LONG)
    with pytest.raises(UnprocessableEntityError):  # that answer is not this key's to read
        ask(routing, "small", None, "auto", **keyed)


def test_auto_means_the_preferred_model_or_its_fallback(routing):
    assert ask(routing, "strict", 60_000, "auto") == (MODEL, LONG)
    assert ask(routing, "strict", 100, "auto") == (SMALL, SHORT)


def test_a_key_is_not_routed_to_a_model_that_it_may_not_use(routing):
    assert ask(routing, "preferred", 60_000) == (MODEL, LONG)
    with pytest.raises(RateLimitError):
        ask(routing, "preferred", TIGHT)


def test_the_fallback_can_be_asked_itself_and_has_no_fallback_of_its_own(routing):
    assert ask(routing, "routed", 60_000, SMALL) == (SMALL, SHORT)
    with routing.client("routed") as caller:
        models = caller.get("/v1/models").json()["data"]
    assert [model["id"] for model in models] == [MODEL, SMALL]


def test_an_explanation_tells_of_both_models(routing):
    ask(routing, "routed", 100, **{"x-request-id": "moved"})
    with routing.client("routed") as caller:

        def causes() -> list[tuple[str, str]]:
            found = caller.get("/v1/requests/moved/explain").json()
            return [(part["model"], part["cause"]) for part in found.get("sequences", [])]

        eventually(lambda: causes() == [(MODEL, "deadline_infeasible"), (SMALL, "stop")])


@pytest.fixture
def crowded(codec, tmp_path):
    """One that takes every deadline in, and gives up in the queue what can no longer be met."""
    policy = replace(PLAIN, admission=replace(PLAIN.admission, drop_hopeless=True))
    with live_server(codec, tmp_path, fallback=True, policy=policy) as server:
        server.small.scripts = [codec.encode(SHORT, add_special=False)]
        yield server


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_what_waited_until_it_was_hopeless_is_routed_and_counted_once(crowded, stream, n):
    """Its long prompt makes it hopeless for the one model while there is time for the other."""
    crowded.say(LONG, endless=True, step_seconds=0.2)
    limited = {"requests_per_minute": 2, "tokens_per_day": 10_000}
    crowded.add(Tenant("waits", on_infeasible="route", **limited))
    ask = [{"role": "user", "content": "hi " * 1800}]
    body = {"model": MODEL, "messages": ask, "max_tokens": 20, "stream": stream, "n": n}
    if stream:
        body["stream_options"] = {"include_usage": True}
    headers = {"x-timeout-ms": "4000", "x-request-id": "waited"}
    with crowded.client("waits") as caller, crowded.occupied(8):
        answer = caller.post("/v1/chat/completions", json=body, headers=headers)
        limits = caller.get("/v1/backpressure").json()["limits"]
        parts = caller.get("/v1/requests/waited/explain").json()["sequences"]
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-watermaster-model"] == SMALL
    ends = [(part["model"], part["cause"]) for part in parts]
    assert ends == [(MODEL, "relegated")] * n + [(SMALL, "stop")] * n
    used = int(re.search(r'"total_tokens":(\d+)', answer.text)[1])
    assert [limit["remaining"] for limit in limits] == [1, 10_000 - used]
