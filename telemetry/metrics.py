"""Metrics: a fold over the event log, so that the two cannot disagree.

Label values are bounded: causes, reasons and phases are closed sets, tenants are capped. Times are
seconds. One sequence is one choice; a request for `n` choices counts as n sequences.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from telemetry.admission_events import (
    DeadlineInfeasible,
    PromiseBooked,
    PromiseClaimed,
    PromiseLapsed,
    SequenceDisplaced,
)
from telemetry.billing_events import ExternalServiceCharged, ServiceCharged
from telemetry.events import (
    CancelApplied,
    Event,
    FlowStalled,
    SequenceAdmitted,
    SequenceArrived,
    SequenceEnded,
    SequenceForked,
    SequencePreempted,
    SequenceRefused,
    SequenceStarted,
    StepCommitted,
    StepPlanned,
)
from telemetry.measures import OTHER, CappedLabels, Counter, Gauge, Histogram, Measure
from telemetry.units import SECOND

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_WAIT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_STEP = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(slots=True)
class _Live:
    """What the fold remembers of a sequence between its arrival and its end."""

    tenant: str
    arrived: int
    running: bool = False
    fresh: bool = True  # never admitted so far


class MetricsFold:
    """The metrics of one engine. `apply` and `render` may be called from different threads.

    `max_tenants` caps tenant labels; `max_live` caps the sequences remembered at a time (the
    kernel's own caps keep them far below).
    """

    def __init__(self, engine: str, max_tenants: int = 100, max_live: int = 100_000) -> None:
        self.engine = engine
        self._tenant = CappedLabels(max_tenants)
        self._max_live = max_live
        self._live: dict[int, _Live] = {}
        self._dropped = 0
        self._lock = Lock()
        self._define_traffic()
        self._define_admission()
        self._define_engine()
        self._handlers: dict[type, Callable[[Any], None]] = {
            SequenceArrived: self._arrived,
            SequenceRefused: self._refused,
            SequenceAdmitted: self._admitted,
            SequenceForked: self._forked,
            SequencePreempted: self._preempted,
            SequenceStarted: self._started,
            SequenceEnded: self._ended,
            StepPlanned: self._planned,
            StepCommitted: self._committed,
            ServiceCharged: self._charged,
            ExternalServiceCharged: self._charged_elsewhere,
            FlowStalled: self._stalled,
            CancelApplied: self._cancelled,
            DeadlineInfeasible: self._infeasible,
            SequenceDisplaced: self._displaced,
            PromiseBooked: lambda _: self.promises.add(1, "booked"),
            PromiseClaimed: lambda _: self.promises.add(1, "claimed"),
            PromiseLapsed: lambda _: self.promises.add(1, "lapsed"),
        }

    def apply(self, event: Event) -> None:
        self.apply_all((event,))

    def apply_all(self, events: Iterable[Event]) -> None:
        with self._lock:
            for event in events:
                handler = self._handlers.get(type(event))
                if handler:
                    handler(event)

    def note_dropped(self, total: int) -> None:
        """Say that `total` events so far never reached this fold.

        Ends may be among them, so what is live is forgotten: the gauges count too few until the
        sequences of that moment are over, instead of too many for ever.
        """
        with self._lock:
            if total > self._dropped:
                self.dropped.add(total - self._dropped)
                self._dropped = total
                self._live.clear()
                self.running.reset()
                self.waiting.reset()

    def render(self) -> bytes:
        """Prometheus text of this engine alone."""
        return render([self])

    def measures(self) -> tuple[Measure, ...]:
        return tuple(value for value in vars(self).values() if isinstance(value, Measure))

    def write(self, families: Sequence[Metric]) -> None:
        """Add this engine's values to the families of its measures."""
        with self._lock:
            for measure, family in zip(self.measures(), families, strict=True):
                measure.write(family, (self.engine,))

    def _define_traffic(self) -> None:
        tenant = ("tenant",)
        self.sequences = Counter(
            "watermaster_sequences", "Sequences that ended", ("tenant", "cause")
        )
        self.refusals = Counter(
            "watermaster_refusals", "Sequences that were never queued", ("tenant", "cause")
        )
        self.running = Gauge("watermaster_running_sequences", "Sequences in the batch", tenant)
        self.waiting = Gauge(
            "watermaster_waiting_sequences", "Sequences waiting, preempted ones too", tenant
        )
        self.prompt_tokens = Counter(
            "watermaster_prompt_tokens", "Prompt tokens computed for the first time", tenant
        )
        self.cached_tokens = Counter(
            "watermaster_cached_prompt_tokens", "Prompt tokens found in the prefix cache", tenant
        )
        self.output_tokens = Counter("watermaster_output_tokens", "Output tokens committed", tenant)
        self.recomputed_tokens = Counter(
            "watermaster_recomputed_tokens", "Tokens computed again on the tenant's bill", tenant
        )
        self.service = Counter(
            "watermaster_charged_service", "Service charged, in cost units before weight", tenant
        )
        self.external_service = Counter(
            "watermaster_external_service", "Service given by other replicas", tenant
        )
        self.first_token = Histogram(
            "watermaster_time_to_first_token_seconds", "Arrival to first token", _WAIT, tenant
        )
        self.queue_time = Histogram(
            "watermaster_queue_time_seconds",
            "Arrival to admission, or to the end of those never admitted",
            _WAIT,
            tenant,
        )
        self.token_time = Histogram(
            "watermaster_time_per_output_token_seconds",
            "Mean time between a sequence's output tokens",
            _PER_TOKEN,
            tenant,
        )
        self.total_time = Histogram(
            "watermaster_sequence_duration_seconds", "Arrival to end", _WAIT, tenant
        )

    def _define_admission(self) -> None:
        self.infeasible = Counter(
            "watermaster_infeasible",
            "Requests predicted to miss a deadline, or shut out by a gate",
            ("tenant", "verdict", "ground"),
        )
        self.displaced = Counter(
            "watermaster_displaced", "Waiters that made room in a full queue", ("tenant",)
        )
        self.promises = Counter(
            "watermaster_promises", "Places promised to refused callers", ("outcome",)
        )

    def _define_engine(self) -> None:
        self.step_time = Histogram("watermaster_step_duration_seconds", "One step", _STEP)
        self.slowness = Gauge(
            "watermaster_step_slowness", "Times as long as usual that steps take lately"
        )
        self.step_rows = Histogram(
            "watermaster_step_sequences", "Sequences computed by a step", _ROWS
        )
        self.step_tokens = Histogram(
            "watermaster_step_tokens", "Tokens computed by a step", _TOKENS
        )
        self.lag_tokens = Counter(
            "watermaster_lag_tokens", "Tokens computed for sequences already over"
        )
        self.preemptions = Counter(
            "watermaster_preemptions", "Sequences that lost their place", ("reason",)
        )
        self.preempted_tokens = Counter(
            "watermaster_preempted_tokens", "Computed tokens lost to preemption", ("reason",)
        )
        self.swap_stall = Counter(
            "watermaster_swap_stall_seconds",
            "Time for which steps waited for KV that was moved on the tenant's bill",
            ("tenant",),
        )
        self.stalls = Counter(
            "watermaster_stalls", "How often a flow's first waiter began to wait", ("cause",)
        )
        self.cancelled = Counter(
            "watermaster_cancelled_sequences", "Live sequences that cancels found", ("phase",)
        )
        self.dropped = Counter("watermaster_events_dropped", "Events these metrics did not see")

    def _arrived(self, event: SequenceArrived) -> None:
        while len(self._live) >= self._max_live:
            self._forget(next(iter(self._live)))
        tenant = self._tenant(event.lineage.tenant)
        self._live[event.sequence] = _Live(tenant, event.now)
        self.waiting.add(1, tenant)

    def _refused(self, event: SequenceRefused) -> None:
        self.refusals.add(1, self._tenant(event.lineage.tenant), event.cause)

    def _infeasible(self, event: DeadlineInfeasible) -> None:
        self.infeasible.add(1, self._tenant(event.lineage.tenant), event.verdict, event.ground)

    def _displaced(self, event: SequenceDisplaced) -> None:
        self.displaced.add(1, self._tenant(event.flow[0]))

    def _admitted(self, event: SequenceAdmitted) -> None:
        live = self._live.get(event.sequence)
        if not event.resumed:
            self.cached_tokens.add(event.cached_tokens, live.tenant if live else OTHER)
        if live:
            if live.fresh:
                self.queue_time.observe(_seconds(event.now - live.arrived), live.tenant)
            self._set_running(live, running=True)

    def _forked(self, event: SequenceForked) -> None:
        live = self._live.get(event.sequence)
        if live:
            self._set_running(live, running=True)

    def _preempted(self, event: SequencePreempted) -> None:
        self.preemptions.add(1, event.reason)
        self.preempted_tokens.add(event.tokens_lost, event.reason)
        live = self._live.get(event.sequence)
        if live:
            self._set_running(live, running=False)

    def _started(self, event: SequenceStarted) -> None:
        live = self._live.get(event.sequence)
        waited = _seconds(event.now - event.arrived)
        self.first_token.observe(waited, live.tenant if live else OTHER)

    def _ended(self, event: SequenceEnded) -> None:
        tenant = self._tenant(event.lineage.tenant)
        self.sequences.add(1, tenant, event.cause)
        self.total_time.observe(_seconds(event.now - event.arrived), tenant)
        if event.admitted is None:
            self.queue_time.observe(_seconds(event.now - event.arrived), tenant)
        if event.first_token is not None and event.output_tokens > 1:
            intervals = event.output_tokens - 1
            self.token_time.observe(_seconds(event.now - event.first_token) / intervals, tenant)
        if event.sequence in self._live:
            self._forget(event.sequence)

    def _planned(self, event: StepPlanned) -> None:
        if event.sequences:
            self.step_rows.observe(len(event.sequences))
            self.step_tokens.observe(sum(event.counts))

    def _committed(self, event: StepCommitted) -> None:
        self.step_time.observe(_seconds(event.duration))
        self.slowness.set(event.slowness)
        self.lag_tokens.add(event.lag_tokens)

    def _charged(self, event: ServiceCharged) -> None:
        for charge in event.charges():
            tenant = self._tenant(charge.flow[0])
            self.prompt_tokens.add(charge.prompt_tokens, tenant)
            self.output_tokens.add(charge.output_tokens, tenant)
            self.recomputed_tokens.add(charge.rework_tokens, tenant)
            self.service.add(charge.cost, tenant)
        for holdup in event.holdups:
            self.swap_stall.add(_seconds(holdup.duration), self._tenant(holdup.tenant))

    def _charged_elsewhere(self, event: ExternalServiceCharged) -> None:
        self.external_service.add(event.cost, self._tenant(event.flow[0]))

    def _stalled(self, event: FlowStalled) -> None:
        if event.cause:
            self.stalls.add(1, event.cause)

    def _cancelled(self, event: CancelApplied) -> None:
        self.cancelled.add(event.queued, "queued")
        self.cancelled.add(event.prefill, "prefill")
        self.cancelled.add(event.decode, "decode")

    def _set_running(self, live: _Live, *, running: bool) -> None:
        live.fresh = False
        if live.running != running:
            live.running = running
            step = 1 if running else -1
            self.running.add(step, live.tenant)
            self.waiting.add(-step, live.tenant)

    def _forget(self, sequence: int) -> None:
        live = self._live.pop(sequence)
        (self.running if live.running else self.waiting).add(-1, live.tenant)


def render(folds: Sequence[MetricsFold]) -> bytes:
    """Prometheus text of several engines (at least one), each family once."""
    return generate_latest(_Families(folds))


class _Families(Collector):
    def __init__(self, folds: Sequence[MetricsFold]) -> None:
        self._folds = folds

    def collect(self) -> Iterable[Metric]:
        families = [measure.family(("engine",)) for measure in self._folds[0].measures()]
        for fold in self._folds:
            fold.write(families)
        return families


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / SECOND
