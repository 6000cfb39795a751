import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from opentelemetry import trace as global_trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from telemetry import semconv
from telemetry import tracing as tracing_module
from telemetry.clock import VirtualClock
from telemetry.events import Cause, Phase, SequenceEnded, SequenceRefused
from telemetry.lineage import Lineage
from telemetry.tracing import RequestTrace, Tracing, exporter

MS = 1_000_000
EPOCH = 1_800_000_000_000 * MS
LINEAGE = Lineage("gold", "task1", "run1", "attempt1", "req1")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock(start=1000 * MS, epoch=EPOCH)
        self.memory = InMemorySpanExporter()
        self.tracing = Tracing(self.clock, self.memory)

    def start(self, **headers: str) -> RequestTrace:
        return self.tracing.start(semconv.CHAT, headers, self.clock.now())

    def spans(self) -> dict[str, ReadableSpan]:
        self.tracing.close()
        return {
            span.name + str((span.attributes or {}).get(semconv.CHOICE, "")): span
            for span in self.memory.get_finished_spans()
        }


@pytest.fixture
def world() -> World:
    return World()


def ended(sequence: int, **times: int | None) -> SequenceEnded:
    values = {"arrived": 1010, "admitted": 1030, "first_token": 1060, "now": 1100} | times
    instants = {name: None if at is None else at * MS for name, at in values.items()}
    now = instants.pop("now")
    assert now is not None
    return SequenceEnded(
        now=now,
        sequence=sequence,
        lineage=LINEAGE,
        flow=("gold",),
        cause=Cause.STOP,
        phase=Phase.DECODE,
        detail="",
        prompt_tokens=10,
        cached_tokens=0,
        output_tokens=5,
        recomputed_tokens=0,
        blocks_released=1,
        **instants,  # type: ignore[arg-type]
    )


def span_of(span: ReadableSpan) -> tuple[float, float]:
    """Start and end in ms after the request came."""
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.start_time - EPOCH) / MS, (span.end_time - EPOCH) / MS


def test_one_tree_with_the_engines_times(world: World) -> None:
    trace = world.start()
    trace.describe(
        "smollm2-135m",
        LINEAGE,
        ("gold", "ann"),
        deadline=1500 * MS,
        attributes={semconv.REQUEST_MAX_TOKENS: 5, semconv.REQUEST_SEED: None},
    )
    trace.follow([7])
    world.clock.advance(110 * MS)
    trace.finish(
        200,
        attributes={
            semconv.USAGE_INPUT_TOKENS: 10,
            semconv.USAGE_CACHED_TOKENS: 0,
            semconv.RESPONSE_FINISH_REASONS: ("stop",),
        },
    )
    world.tracing.apply_all([ended(8), ended(7), ended(7)])
    spans = world.spans()
    assert {name: span_of(span) for name, span in spans.items()} == {
        "chat smollm2-135m": (0, 110),
        "gateway wait": (0, 10),
        "engine queue0": (10, 30),
        "prefill0": (30, 60),
        "decode0": (60, 100),
    }
    root = spans.pop("chat smollm2-135m")
    assert root.kind == SpanKind.SERVER
    assert root.parent is None
    assert root.status.status_code == StatusCode.UNSET
    assert dict(root.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "watermaster",
        "gen_ai.request.model": "smollm2-135m",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ("stop",),
        "http.response.status_code": 200,
        "watermaster.tenant": "gold",
        "watermaster.task": "task1",
        "watermaster.run": "run1",
        "watermaster.attempt": "attempt1",
        "watermaster.request": "req1",
        "watermaster.flow": ("gold", "ann"),
        "watermaster.deadline": EPOCH // MS + 500,
    }
    assert root.resource.attributes["service.name"] == "watermaster"
    for child in spans.values():
        assert child.parent is not None
        assert child.parent.span_id == root.context.span_id
        assert child.context.trace_id == root.context.trace_id


def test_the_callers_trace_is_continued(world: World) -> None:
    world.start(traceparent=PARENT, tracestate="vendor=1").finish(200)
    root = world.spans()["chat"]
    assert f"{root.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == "b7ad6b7169203331"
    assert root.context.trace_state.get("vendor") == "1"


@pytest.mark.parametrize("header", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_bad_traceparent_begins_a_new_trace(world: World, header: str) -> None:
    world.start(traceparent=header).finish(200)
    assert world.spans()["chat"].parent is None


def test_what_the_caller_does_not_sample_is_not_recorded(world: World) -> None:
    trace = world.start(traceparent=PARENT[:-2] + "00")
    trace.follow([7])
    trace.finish(200)
    world.tracing.apply_all([ended(7)])
    assert world.spans() == {}


def test_every_choice_has_its_spans(world: World) -> None:
    trace = world.start()
    trace.follow([7, 8])
    world.tracing.apply_all([ended(8, admitted=1040, arrived=1011)])
    world.tracing.apply_all([ended(7)])
    trace.finish(200)
    found = {name: span_of(span) for name, span in world.spans().items()}
    assert found["gateway wait"] == (0, 11), "once, up to the first that is known"
    assert found["engine queue0"] == (10, 30)
    assert found["engine queue1"] == (11, 40)
    assert len(found) == 8


def test_spans_end_where_the_sequence_did(world: World) -> None:
    trace = world.start()
    trace.follow([1, 2])
    world.tracing.apply_all([ended(1, admitted=None, first_token=None), ended(2, first_token=None)])
    trace.finish(504, error="deadline_exceeded")
    found = {name: span_of(span) for name, span in world.spans().items()}
    assert found["engine queue0"] == (10, 100)
    assert found["prefill1"] == (30, 100)
    assert "prefill0" not in found
    assert "decode1" not in found


def test_a_refusal_ends_the_gateways_wait(world: World) -> None:
    trace = world.start()
    trace.follow([1])
    world.tracing.apply_all([SequenceRefused(1025 * MS, 1, LINEAGE, Cause.QUEUE_FULL, "", 5)])
    trace.finish(429, error="queue_full")
    spans = world.spans()
    assert span_of(spans["gateway wait"]) == (0, 25)
    assert set(spans) == {"chat", "gateway wait"}
    assert spans["chat"].status.status_code == StatusCode.UNSET, "a 4xx is not our error"
    assert (spans["chat"].attributes or {})["error.type"] == "queue_full"


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (200, None, StatusCode.UNSET),
        (200, "deadline_exceeded", StatusCode.ERROR),  # in-band, in the middle of a stream
        (400, "invalid_value", StatusCode.UNSET),
        (503, "saturated", StatusCode.ERROR),
    ],
)
def test_the_status_follows_the_conventions(
    world: World, status: int, error: str | None, code: StatusCode
) -> None:
    world.start().finish(status, error=error)
    assert world.spans()["chat"].status.status_code == code


def test_only_the_first_end_counts(world: World, caplog: pytest.LogCaptureFixture) -> None:
    trace = world.start()
    trace.finish(499, error="cancelled")
    world.clock.advance(MS)
    trace.finish(200)
    root = world.spans()["chat"]
    assert (root.attributes or {})["http.response.status_code"] == 499
    assert span_of(root) == (0, 0)
    assert caplog.text == ""


def test_what_is_found_out_after_the_end_is_not_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller who hung up may share the answer with others, for whom it is placed later."""
    trace = world.start()
    trace.finish(499, error="cancelled")
    trace.describe("smollm2-135m", LINEAGE, ["gold"])
    assert list(world.spans()) == ["chat"]
    assert caplog.text == ""


def test_sequences_whose_end_was_lost_are_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing_module, "_MAX_FOLLOWED", 3)
    trace = world.start()
    trace.follow(range(10))
    assert sorted(world.tracing._followed) == [7, 8, 9]
    world.tracing.apply_all([ended(sequence) for sequence in range(10)])
    assert not world.tracing._followed


def test_without_an_exporter_nothing_is_made() -> None:
    tracing = Tracing(VirtualClock(), exporter("none"))
    first = tracing.start(semconv.CHAT, {"traceparent": PARENT}, 0)
    first.describe("m", LINEAGE, ("gold",))
    first.follow([7])
    first.finish(200)
    tracing.apply_all([ended(7)])
    tracing.close()
    assert first is tracing.start(semconv.CHAT, {}, 1), "one for all: it keeps nothing"


def test_nothing_global_is_set(world: World) -> None:
    before = global_trace.get_tracer_provider()
    world.start().finish(200)
    assert global_trace.get_tracer_provider() is before


def test_refuses_another_exporter() -> None:
    with pytest.raises(ValueError, match="'jaeger'"):
        exporter("jaeger")


CONSOLE = """
from telemetry.clock import SystemClock
from telemetry.tracing import Tracing, exporter
clock = SystemClock()
tracing = Tracing(clock, exporter("console"))
tracing.start("chat", {}, clock.now()).finish(200)
tracing.close()
"""


def test_the_console_is_standard_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONSOLE], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert json.loads(done.stderr)["attributes"]["http.response.status_code"] == 200


class Collector(BaseHTTPRequestHandler):
    bodies: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.bodies.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """The test's output stays clean."""


def test_spans_reach_a_collector() -> None:
    Collector.bodies = []
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        server.timeout = 10
        thread = Thread(target=server.handle_request)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        clock = VirtualClock()
        tracing = Tracing(clock, exporter("otlp", endpoint))
        tracing.start(semconv.CHAT, {}, 0).finish(200)
        tracing.close()
        thread.join()
    [(path, body)] = Collector.bodies
    assert path == "/v1/traces"
    assert b"gen_ai.operation.name" in body


def test_an_absent_collector_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing_module, "_CLOSE_SECONDS", 0.2)
    tracing = Tracing(VirtualClock(), exporter("otlp", "http://127.0.0.1:9/v1/traces"))
    tracing.start(semconv.CHAT, {}, 0).finish(200)
    before = time.monotonic()
    tracing.close()
    assert time.monotonic() - before < 5
