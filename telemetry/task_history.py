"""What became of the sequences of one task, from the event log alone: a fold over its events."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from telemetry.events import (
    CancelApplied,
    Cause,
    Event,
    Phase,
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
from telemetry.lineage import Lineage

# Ends that somebody asked for, after which whatever is still computed is lag.
CANCELS = frozenset({Cause.CANCELLED, Cause.LOST_RACE, Cause.DISCONNECTED, Cause.SLOW_READER})


@dataclass(slots=True)
class Told:
    """One sequence, so far. Tokens; times in monotonic nanoseconds.

    `first` unless a sibling choice shares (and counts) its prompt, of which what was processed
    counts once it has ended. It was refused if it has a
    `cause` and no `phase`; it has ended if it has both, and `phase` is where it stood then.
    `lag_tokens` were computed after the word came that it should end.
    """

    sequence: int
    lineage: Lineage
    arrived: int
    first: bool = True
    phase: Phase | None = Phase.QUEUED
    cause: Cause | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    lag_tokens: int = 0
    ended: int | None = None
    started: bool = False
    computed: list[tuple[int, int]] = field(default_factory=list)  # when a slice landed, its size


def tell(events: Iterable[Event], tenant: str, task: str) -> list[Told]:
    """Those of the task's sequences whose arrival or refusal is among `events`, in its order."""
    fold = _Fold(tenant, task)
    for event in events:
        fold.apply(event)
    return list(fold.known.values())


class _Fold:
    def __init__(self, tenant: str, task: str) -> None:
        self.known: dict[int, Told] = {}
        self._whose = (tenant, task)
        self._first: dict[int, Told] = {}  # of the choices of a request, by sequence
        self._flights: dict[int, dict[int, int]] = {}  # step -> sequence -> positions
        self._ended: list[Told] = []  # at the instant of the last end
        self._handlers: dict[type, Any] = {
            SequenceArrived: self._arrived,
            SequenceRefused: self._refused,
            SequenceAdmitted: self._admitted,
            SequenceForked: self._forked,
            SequencePreempted: self._preempted,
            SequenceStarted: self._started,
            SequenceEnded: self._end,
            StepPlanned: self._planned,
            StepCommitted: self._committed,
            CancelApplied: self._cancelled,
        }

    def apply(self, event: Event) -> None:
        handler = self._handlers.get(type(event))
        if handler:
            handler(event)

    def _is_ours(self, lineage: Lineage) -> bool:
        return (lineage.tenant, lineage.task) == self._whose

    def _arrived(self, event: SequenceArrived) -> None:
        if not self._is_ours(event.lineage):
            return
        last = next(reversed(self.known.values()), None)
        shares = last is not None and (last.arrived, last.lineage) == (event.now, event.lineage)
        told = Told(event.sequence, event.lineage, event.now, first=not shares)
        told.prompt_tokens = event.prompt_tokens
        self.known[event.sequence] = told
        self._first[event.sequence] = self._first[last.sequence] if last and shares else told

    def _refused(self, event: SequenceRefused) -> None:
        if self._is_ours(event.lineage):
            self.known[event.sequence] = Told(
                event.sequence, event.lineage, event.now, phase=None, cause=event.cause
            )

    def _admitted(self, event: SequenceAdmitted) -> None:
        self._enter(event.sequence)
        told = self.known.get(event.sequence)
        if told is not None and not event.resumed:
            told.cached_tokens = event.cached_tokens

    def _forked(self, event: SequenceForked) -> None:
        self._enter(event.sequence)
        told, parent = self.known.get(event.sequence), self.known.get(event.parent)
        if told is not None and parent is not None:
            told.cached_tokens = parent.cached_tokens

    def _enter(self, sequence: int) -> None:
        told = self.known.get(sequence)
        if told is not None:
            told.phase = Phase.DECODE if told.started else Phase.PREFILL

    def _preempted(self, event: SequencePreempted) -> None:
        told = self.known.get(event.sequence)
        if told is not None:
            told.phase = Phase.QUEUED
            for rows in self._flights.values():
                rows.pop(event.sequence, None)  # in vain, but for another reason

    def _started(self, event: SequenceStarted) -> None:
        told = self.known.get(event.sequence)
        if told is not None:
            told.started = True
            told.phase = Phase.DECODE

    def _end(self, event: SequenceEnded) -> None:
        told = self.known.get(event.sequence)
        if told is None:
            return
        told.phase, told.cause, told.ended = event.phase, event.cause, event.now
        told.output_tokens = event.output_tokens
        told.prompt_tokens = event.processed_tokens  # nobody pays for what was not looked at
        told.cached_tokens = min(event.cached_tokens, event.processed_tokens)
        first = self._first[event.sequence]
        if first.ended is not None:  # another choice may have gone on with the prompt
            first.prompt_tokens = max(first.prompt_tokens, event.processed_tokens)
        if event.cause in CANCELS:
            told.lag_tokens = sum(rows.get(event.sequence, 0) for rows in self._flights.values())
            self._ended.append(told)

    def _planned(self, event: StepPlanned) -> None:
        concerned = self.known.keys() & event.sequences
        if concerned:
            rows = zip(event.sequences, event.counts, strict=True)
            self._flights[event.step] = {
                number: size for number, size in rows if number in concerned
            }

    def _committed(self, event: StepCommitted) -> None:
        for step in [step for step in self._flights if step <= event.step]:
            for sequence, size in self._flights.pop(step).items():
                self.known[sequence].computed.append((event.now, size))
        for sequence in self.known.keys() & event.sequences:
            at = event.sequences.index(sequence)
            if self.known[sequence].ended is None:
                self.known[sequence].output_tokens += event.output_tokens[at]

    def _cancelled(self, event: CancelApplied) -> None:
        """The ends that came with it came before it; its own word came earlier still."""
        for told in self._ended:
            since = event.received
            if told.ended == event.now and since is not None and event.scope.covers(told.lineage):
                told.lag_tokens += sum(size for landed, size in told.computed if landed > since)
        self._ended.clear()
