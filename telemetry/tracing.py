"""One OpenTelemetry span tree per request; what happened in the engine is taken from its events.

    chat smollm2-135m     the whole request, a child of the caller's span if it sent `traceparent`
      gateway wait        reading, checking, tokenising, hand-over
      engine queue        arrival in the engine to admission       (these three
      prefill             admission to the first token              for every choice)
      decode              the first token to the end

The SDK's own `OTEL_*` variables apply (sampler, resource, batch sizes); nothing global is set.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from threading import Timer
from typing import ClassVar

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from telemetry import semconv
from telemetry.clock import Clock
from telemetry.events import Event, SequenceEnded, SequenceRefused
from telemetry.lineage import Lineage
from telemetry.secrets import holds_key

_CLOSE_SECONDS = 3.0
_MAX_FOLLOWED = 10_000  # sequences whose end is awaited; more only if events were lost


def exporter(kind: str, endpoint: str = "") -> SpanExporter | None:
    """Where spans go: "none" (nowhere), "console" (standard error), "otlp" (over HTTP).

    `endpoint` is the collector's full URL for traces; empty leaves it to the `OTEL_*` variables.
    Raises ValueError for another kind.
    """
    if kind == "none":
        return None
    if kind == "console":
        return ConsoleSpanExporter(out=sys.stderr)
    if kind == "otlp":
        # Slow to import, and rarely wanted.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=endpoint or None)
    raise ValueError(f"the exporter must be none, console or otlp, not {kind!r}")


class RequestTrace:
    """The spans of one request. This base records nothing and costs nothing."""

    recorded: ClassVar[bool] = False  # whether it is worth finding out what to say

    def describe(
        self,
        model: str,
        lineage: Lineage,
        flow: Sequence[str],
        deadline: int | None = None,
        attributes: Mapping[str, AttributeValue | None] | None = None,
    ) -> None:
        """Say what the request is once that is known; of no effect after its end.

        `deadline` is in monotonic ns. `attributes` are named in `telemetry.semconv`; None values
        are left out.
        """

    def follow(self, sequences: Sequence[int]) -> None:
        """Take the engine's times from the events of these sequences, choice by choice."""

    def finish(
        self,
        status: int,
        *,
        error: str | None = None,
        attributes: Mapping[str, AttributeValue | None] | None = None,
    ) -> None:
        """End the request; only the first call counts. Events may still arrive afterwards.

        `status` is the HTTP status sent; `error` the code of a refusal or of a failure in the
        middle of a stream.
        """


class Tracing:
    """Makes and feeds the traces. Used from one event loop; exports on a thread of its own."""

    def __init__(self, clock: Clock, exporter: SpanExporter | None) -> None:
        self._clock = clock
        self._followed: _Followed = {}
        self._propagator = TraceContextTextMapPropagator()
        self._provider: TracerProvider | None = None
        if exporter:
            self._exporter = exporter
            resource = Resource.create(
                {"service.name": "watermaster", "service.version": version("watermaster")}
            )
            self._provider = TracerProvider(resource=resource)
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
            self._tracer = self._provider.get_tracer("watermaster")

    def start(self, operation: str, headers: Mapping[str, str], arrived: int) -> RequestTrace:
        """Begin the trace of a request that came at `arrived` (monotonic ns).

        `operation` is a GenAI operation name of `telemetry.semconv`. A W3C `traceparent` among
        `headers` (lower case) makes it part of the caller's trace, with the caller's sampling.
        """
        if self._provider is None:
            return _NOTHING
        offset = self._clock.wall() - self._clock.now()
        span = self._tracer.start_span(
            operation,
            context=self._context(headers),
            kind=SpanKind.SERVER,
            attributes={
                semconv.OPERATION: operation,
                semconv.PROVIDER: semconv.PROVIDER_NAME,
            },
            start_time=arrived + offset,
        )
        if not span.is_recording():
            return _NOTHING
        return _RecordedTrace(
            self._tracer, self._clock, self._followed, span, operation, arrived, offset
        )

    def _context(self, headers: Mapping[str, str]) -> Context:
        """The caller's, without a key pasted into it: it goes into spans as it is."""
        if "traceparent" not in headers:
            return Context()
        sent = ((name, headers.get(name, "")) for name in ("traceparent", "tracestate"))
        carried = {name: value for name, value in sent if not holds_key(value)}
        return self._propagator.extract(carried, context=Context())

    def apply_all(self, events: Iterable[Event]) -> None:
        """Read the engine's events; a reader of the event pump."""
        if not self._followed:
            return
        for event in events:
            if isinstance(event, SequenceEnded) and event.sequence in self._followed:
                trace, choice = self._followed.pop(event.sequence)
                trace.engine_times(
                    choice, event.arrived, event.admitted, event.first_token, event.now
                )
            elif isinstance(event, SequenceRefused) and event.sequence in self._followed:
                trace, _ = self._followed.pop(event.sequence)
                trace.handed_over(event.now)

    def close(self) -> None:
        """Export what is pending, for a few seconds at most, and end the exporter's thread."""
        if self._provider is None:
            return
        # Left alone, the SDK tries an absent collector for 30 seconds.
        timer = Timer(_CLOSE_SECONDS, self._exporter.shutdown)
        timer.start()
        self._provider.shutdown()
        timer.cancel()


class _RecordedTrace(RequestTrace):
    """`offset` turns monotonic into wall ns, the same for the whole tree."""

    recorded: ClassVar[bool] = True

    def __init__(
        self,
        tracer: Tracer,
        clock: Clock,
        followed: "_Followed",
        span: Span,
        operation: str,
        arrived: int,
        offset: int,
    ) -> None:
        self._tracer = tracer
        self._clock = clock
        self._followed = followed
        self._span = span
        self._inside = set_span_in_context(span, Context())
        self._operation = operation
        self._arrived = arrived
        self._offset = offset
        self._handed_over = False
        self._finished = False

    def describe(
        self,
        model: str,
        lineage: Lineage,
        flow: Sequence[str],
        deadline: int | None = None,
        attributes: Mapping[str, AttributeValue | None] | None = None,
    ) -> None:
        if self._finished:  # its caller left while that was being found out
            return
        self._span.update_name(f"{self._operation} {model}")
        self._set(
            {
                semconv.REQUEST_MODEL: model,
                semconv.TENANT: lineage.tenant,
                semconv.TASK: lineage.task,
                semconv.RUN: lineage.run,
                semconv.ATTEMPT: lineage.attempt,
                semconv.REQUEST: lineage.request,
                semconv.FLOW: tuple(flow),
                semconv.DEADLINE: _milliseconds(deadline, self._offset),
                **(attributes or {}),
            }
        )

    def follow(self, sequences: Sequence[int]) -> None:
        for choice, sequence in enumerate(sequences):
            if len(self._followed) >= _MAX_FOLLOWED:
                del self._followed[next(iter(self._followed))]
            self._followed[sequence] = (self, choice)

    def engine_times(
        self, choice: int, arrived: int, admitted: int | None, first_token: int | None, ended: int
    ) -> None:
        """Add the spans of one choice; times are monotonic ns, None for what never came."""
        self.handed_over(arrived)
        self._child("engine queue", arrived, ended if admitted is None else admitted, choice)
        if admitted is not None:
            self._child("prefill", admitted, ended if first_token is None else first_token, choice)
        if first_token is not None:
            self._child("decode", first_token, ended, choice)

    def handed_over(self, now: int) -> None:
        """The engine has the request, or has refused it; the gateway's own wait is over."""
        if not self._handed_over:
            self._handed_over = True
            self._child("gateway wait", self._arrived, now)

    def finish(
        self,
        status: int,
        *,
        error: str | None = None,
        attributes: Mapping[str, AttributeValue | None] | None = None,
    ) -> None:
        if self._finished:
            return
        self._finished = True
        self._set({semconv.HTTP_STATUS: status, semconv.ERROR_TYPE: error, **(attributes or {})})
        # By the HTTP conventions a 4xx is the caller's error, not the server's.
        if status >= 500 or (error and status < 400):
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(self._clock.now() + self._offset)

    def _set(self, attributes: Mapping[str, AttributeValue | None]) -> None:
        self._span.set_attributes(
            {name: value for name, value in attributes.items() if value is not None}
        )

    def _child(self, name: str, start: int, end: int, choice: int | None = None) -> None:
        span = self._tracer.start_span(
            name,
            context=self._inside,
            attributes=None if choice is None else {semconv.CHOICE: choice},
            start_time=start + self._offset,
        )
        span.end(end + self._offset)


_Followed = dict[int, tuple[_RecordedTrace, int]]  # sequence -> its trace, its choice's index
_NOTHING = RequestTrace()


def _milliseconds(instant: int | None, offset: int) -> int | None:
    return None if instant is None else (instant + offset) // 1_000_000
