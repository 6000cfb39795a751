"""One span tree for each call, failed and refused calls too."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from telemetry import semconv
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually

pytestmark = pytest.mark.model  # the text is that of the default model

BODY = {"model": MODEL, "messages": HELLO, "max_tokens": 4}
TRACE = "0af7651916cd43dd8448eb211c80319"


def tree(server: LiveServer, trace: str, spans: int) -> tuple[ReadableSpan, list[str]]:
    """The root of a trace of `spans` spans, and the names of those under it."""

    def finished() -> list[ReadableSpan]:
        everything = server.spans.get_finished_spans()
        return [span for span in everything if f"{span.context.trace_id:032x}" == trace]

    eventually(lambda: len(finished()) == spans)
    (root,) = [span for span in finished() if span.parent.span_id == 0xB7AD6B7169203331]
    inside = [span for span in finished() if span.parent.span_id == root.context.span_id]
    assert len(inside) == spans - 1
    return root, sorted(span.name for span in inside)


def post(server: LiveServer, trace: str, path: str = "/v1/chat/completions", **more):
    with server.client(traceparent=f"00-{trace}-b7ad6b7169203331-01") as client:
        return client.post(path, json=BODY | more, headers={"x-task-id": "traced"})


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_one_tree_under_the_callers_span(server, stream):
    trace = f"{TRACE}{int(stream)}"
    assert post(server, trace, stream=stream, n=2, seed=0).status_code == 200
    root, inside = tree(server, trace, 8)
    assert root.name == f"chat {MODEL}"
    assert inside == ["decode"] * 2 + ["engine queue"] * 2 + ["gateway wait"] + ["prefill"] * 2
    attributes = root.attributes
    assert attributes[semconv.TENANT] == "gold"
    assert attributes[semconv.TASK] == "traced"
    assert attributes[semconv.REQUEST_CHOICES] == 2
    assert attributes[semconv.REQUEST_STREAM] is stream
    assert attributes[semconv.USAGE_OUTPUT_TOKENS] == 8
    assert attributes[semconv.RESPONSE_FINISH_REASONS] == ("length", "length")
    assert attributes[semconv.HTTP_STATUS] == 200
    assert root.status.status_code is StatusCode.UNSET


def test_a_trace_says_what_baggage_was_ignored(server):
    trace = f"{TRACE}9"
    sent = {"baggage": "watermaster.run=a/b", "traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    with server.client() as client:
        assert client.post("/v1/chat/completions", json=BODY, headers=sent).status_code == 200
    root, _ = tree(server, trace, 5)
    assert root.attributes[semconv.IGNORED_BAGGAGE] == "watermaster.run"


def test_a_refused_call_is_traced_too(server):
    assert post(server, f"{TRACE}4", n=99).status_code == 400
    root, inside = tree(server, f"{TRACE}4", 1)
    assert root.attributes[semconv.HTTP_STATUS] == 400
    assert root.attributes[semconv.ERROR_TYPE] == "invalid_value"
    assert inside == []


def test_a_failure_in_mid_stream_is_an_error_of_the_trace(server):
    server.say("so it goes ", endless=True, step_seconds=0.002)
    with server.client(traceparent=f"00-{TRACE}5-b7ad6b7169203331-01") as client:
        body = {**BODY, "stream": True, "max_tokens": 1500, "ignore_eos": True}
        response = client.post("/v1/chat/completions", json=body, headers={"x-timeout-ms": "150"})
    assert response.status_code == 200
    root, _ = tree(server, f"{TRACE}5", 5)
    assert root.attributes[semconv.HTTP_STATUS] == 200
    assert root.attributes[semconv.ERROR_TYPE] == "deadline_exceeded"
    assert root.status.status_code is StatusCode.ERROR


def test_text_completions_have_their_own_name(server):
    with server.client(traceparent=f"00-{TRACE}6-b7ad6b7169203331-01") as client:
        client.post("/v1/completions", json={"model": MODEL, "prompt": "Once"})
    root, _ = tree(server, f"{TRACE}6", 5)
    assert root.name == f"text_completion {MODEL}"
