"""What a run did, folded from the kernel's events: the same way for every policy."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.core.commands import FlowNode
from loadgen.meter import ReworkMeter
from loadgen.workload import Request
from policies.admission import Verdict
from telemetry.admission_events import DeadlineInfeasible
from telemetry.billing_events import ServiceCharged
from telemetry.events import (
    Cause,
    Event,
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

FloatArray = npt.NDArray[np.float64]
Path = tuple[str, ...]

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0  # of measured service, whatever a policy charges


@dataclass(slots=True)
class Fate:
    """What became of one request. Instants are nanoseconds; None for what never happened.

    `arrived` is when the kernel took it in: the first step boundary after `request.arrival`.
    """

    request: Request
    arrived: int | None = None
    admitted: int | None = None
    first_token: int | None = None
    ended: int | None = None
    cause: Cause | None = None
    output_tokens: int = 0
    retry_after: int | None = None
    promised: bool = False  # a place is held for its return
    shortened: bool = False  # taken in with a lower output cap than it asked for
    preemptions: int = 0


@dataclass(slots=True)
class Totals:
    """Sums over all steps of a run."""

    steps: int = 0
    busy: int = 0  # nanoseconds
    running: int = 0  # sequences in the batch, summed over steps
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of prompts, found in the prefix cache by who enters the first time
    output_tokens: int = 0
    recomputed_tokens: int = 0
    lag_tokens: int = 0
    swapped_blocks: int = 0  # both ways
    swap_stall: int = 0  # nanoseconds for which moves of KV held steps up
    preemptions: Counter[str] = field(default_factory=Counter)  # by mode
    predicted_cost: Counter[str] = field(default_factory=Counter)  # nanoseconds, by mode


@dataclass(frozen=True, slots=True)
class ServiceLog:
    """Service and backlog of every node of the flow tree, by number of steps done.

    `service[k, i]` is what node i had received after k steps, in cost units over its weight.
    `backlogs[i]` are the intervals [a, b] of step numbers in which it was backlogged: from the
    moment after a steps when it had work waiting, paused or preempted until, after b steps, it no
    longer had. Intervals that saw no step end are left out.
    """

    paths: tuple[Path, ...]
    times: npt.NDArray[np.int64]  # nanoseconds at which each step was committed
    service: FloatArray
    backlogs: tuple[tuple[tuple[int, int], ...], ...]

    def served(self, start: int, end: int) -> FloatArray:
        """What each node received by steps that ended within (start, end] nanoseconds."""
        first, last = np.searchsorted(self.times, (start, end), side="right")
        between: FloatArray = self.service[last] - self.service[first]
        return between


class Recorder:
    """Folds events as they come; requests are made known before their events."""

    def __init__(self, flows: Iterable[tuple[FlowNode, ...]], meter: ReworkMeter) -> None:
        flows = tuple(flows)
        self.meter = meter
        self._paths = [tuple(node.name for node in flow) for flow in flows]  # by client
        self.fates: dict[int, Fate] = {}  # by sequence
        self.totals = Totals()
        self.weights: dict[Path, float] = {}
        for flow in flows:
            for depth in range(1, len(flow) + 1):
                path = tuple(node.name for node in flow[:depth])
                self.weights[path] = flow[depth - 1].weight
        self._numbers = {path: i for i, path in enumerate(self.weights)}
        self._waiting: dict[int, Path] = {}  # sequences not running, with their flow
        self._counts = [0] * len(self.weights)
        self._longest = [0] * len(self.weights)
        self._since = [0] * len(self.weights)
        self._backlogs: list[list[tuple[int, int]]] = [[] for _ in self.weights]
        self._times: list[int] = []
        self._lost: dict[int, int] = {}  # positions that preempted sequences must compute again
        self._resumed: list[int] = []
        self._charges: list[tuple[int, ServiceCharged]] = []  # with the steps done before
        self._lines = {path: self._line(path) for path in self.weights}
        self._handlers: dict[type, Callable[[Any], None]] = {
            SequenceArrived: self._arrived,
            SequenceRefused: self._refused,
            DeadlineInfeasible: self._judged,
            SequenceAdmitted: self._admitted,
            SequenceForked: self._forked,
            SequencePreempted: self._preempted,
            SequenceStarted: self._started,
            SequenceEnded: self._ended,
            StepPlanned: self._planned,
            StepCommitted: self._committed,
            ServiceCharged: self._charged,
        }

    def _line(self, path: Path) -> tuple[int, ...]:
        """A flow and all above it."""
        return tuple(self._numbers[path[:depth]] for depth in range(1, len(path) + 1))

    def expect(self, sequence: int, request: Request) -> None:
        """`request` is about to be submitted as `sequence`."""
        self.fates[sequence] = Fate(request)

    def fold(self, events: Iterable[Event]) -> None:
        """Take in the events of one iteration, in order."""
        for event in events:
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(event)

    def longest_queue(self, path: Path) -> int:
        """The most sequences that ever waited, paused or preempted ones included, at a node."""
        return self._longest[self._numbers[path]]

    def log(self) -> ServiceLog:
        """Service and backlog so far; what is still backlogged counts until now."""
        now = self.totals.steps
        service = np.cumsum(self._service(), axis=0) / np.asarray(list(self.weights.values()))
        backlogs = [
            (*closed, (since, now)) if count and since < now else tuple(closed)
            for closed, count, since in zip(self._backlogs, self._counts, self._since, strict=True)
        ]
        times = np.asarray(self._times, np.int64)
        return ServiceLog(tuple(self.weights), times, service, tuple(backlogs))

    def _service(self) -> FloatArray:
        """Cost units [steps + 1, nodes] that each step gave each node."""
        service = np.zeros((self.totals.steps + 1, len(self.weights)))
        events = [event for _, event in self._charges]
        steps = np.repeat([step for step, _ in self._charges], [len(e.flows) for e in events])
        nodes = [self._numbers[path] for event in events for path in event.flows]
        prompt = [tokens for event in events for tokens in event.prompt_tokens]
        output = [tokens for event in events for tokens in event.output_tokens]
        cost = PROMPT_WEIGHT * np.asarray(prompt) + OUTPUT_WEIGHT * np.asarray(output)
        above = np.asarray([self._numbers.get(path[:-1], -1) for path in self.weights])
        at, rows = np.asarray(nodes, np.int64), np.arange(len(nodes))
        while len(rows):
            np.add.at(service, (steps[rows], at[rows]), cost[rows])
            at[rows] = above[at[rows]]
            rows = rows[at[rows] >= 0]
        return service

    def _wait(self, sequence: int, path: Path) -> None:
        if sequence in self._waiting:
            return
        self._waiting[sequence] = path
        for node in self._lines[path]:
            if self._counts[node] == 0:
                self._since[node] = self.totals.steps
            self._counts[node] += 1
            self._longest[node] = max(self._longest[node], self._counts[node])

    def _go(self, sequence: int) -> None:
        path = self._waiting.pop(sequence, None)
        if path is None:
            return
        now = self.totals.steps
        for node in self._lines[path]:
            self._counts[node] -= 1
            if self._counts[node] == 0 and self._since[node] < now:
                self._backlogs[node].append((self._since[node], now))

    def _arrived(self, event: SequenceArrived) -> None:
        self.fates[event.sequence].arrived = event.now
        self._wait(event.sequence, event.flow)

    def _refused(self, event: SequenceRefused) -> None:
        fate = self.fates[event.sequence]
        fate.ended, fate.cause = event.now, event.cause
        fate.retry_after, fate.promised = event.retry_after, event.promised

    def _judged(self, event: DeadlineInfeasible) -> None:
        self.fates[event.sequence].shortened = event.verdict == Verdict.DEGRADE

    def _admitted(self, event: SequenceAdmitted) -> None:
        fate = self.fates[event.sequence]
        if fate.admitted is None:
            fate.admitted = event.now
            self.totals.cached_tokens += event.cached_tokens
        self.totals.swapped_blocks += event.swapped_blocks
        self._go(event.sequence)

    def _forked(self, event: SequenceForked) -> None:
        self._go(event.sequence)

    def _preempted(self, event: SequencePreempted) -> None:
        fate = self.fates[event.sequence]
        fate.preemptions += 1
        self.totals.preemptions[event.mode.value] += 1
        self.totals.swapped_blocks += event.swapped_blocks
        self.totals.predicted_cost[event.mode.value] += event.predicted_cost
        if event.tokens_lost:
            self._lost[event.sequence] = max(self._lost.get(event.sequence, 0), event.tokens_lost)
        self._wait(event.sequence, self._paths[fate.request.client])

    def _started(self, event: SequenceStarted) -> None:
        self.fates[event.sequence].first_token = event.now

    def _ended(self, event: SequenceEnded) -> None:
        fate = self.fates[event.sequence]
        fate.ended, fate.cause, fate.output_tokens = event.now, event.cause, event.output_tokens
        self._lost.pop(event.sequence, None)
        self._go(event.sequence)

    def _planned(self, event: StepPlanned) -> None:
        self.totals.running += event.running
        if self._lost:
            self._resumed = self._regained(event)

    def _regained(self, event: StepPlanned) -> list[int]:
        """Lengths of the sequences that a step brings back to where a preemption found them."""
        lengths = []
        for number, start, count in zip(event.sequences, event.starts, event.counts, strict=True):
            if number in self._lost and start + count > self._lost[number]:
                del self._lost[number]
                lengths.append(start + count)
        return lengths

    def _committed(self, event: StepCommitted) -> None:
        totals = self.totals
        self._times.append(event.now)
        totals.steps += 1
        totals.busy += event.duration
        totals.prompt_tokens += event.prompt_tokens
        totals.recomputed_tokens += event.recomputed_tokens
        totals.lag_tokens += event.lag_tokens
        totals.swap_stall += event.stall
        self.meter.committed(event.recomputed_tokens, self._resumed)
        self._resumed = []

    def _charged(self, event: ServiceCharged) -> None:
        self.totals.output_tokens += sum(event.output_tokens)
        self._charges.append((self.totals.steps, event))
