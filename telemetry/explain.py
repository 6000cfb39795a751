"""Explains latencies from the event log alone: a fold that gives each sequence its waterfall.

Between two events that concern a sequence, the whole time goes to one part (`telemetry.waterfall`
says what each means), so that the parts of a sequence always sum to its latency, in integer
nanoseconds. "The step that was computing" is the oldest one in flight; the host's time between two
steps counts with the step that it prepares. A choice that waits for its sibling's prompt shares
its sibling's parts.

While a flow is not at the front, only its own next admission tells which of its waiters stood
before the others; so their time is pending until then.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from telemetry.billing_events import ServiceCharged
from telemetry.events import (
    CallAnswered,
    CallSubmitted,
    Cause,
    Event,
    FlowStalled,
    PreemptMode,
    SequenceAdmitted,
    SequenceArrived,
    SequenceEnded,
    SequenceForked,
    SequencePreempted,
    SequenceRefused,
    SequenceStarted,
    Stall,
    StepCommitted,
    StepPlanned,
)
from telemetry.life import Life, Path, Place
from telemetry.waterfall import Part, Waterfall

MAX_LIVE = 100_000  # sequences remembered; more only if events of their ends were lost
MAX_FLOWS = 10_000  # whose service is told apart
OTHER = ("other",)
LANDS = frozenset({Cause.STOP, Cause.LENGTH, Cause.NUMERICAL, Cause.CONSTRAINT})  # with a step

Rows = dict[int, tuple[int, int]]  # sequence -> start and count of its slice


def explain(events: Iterable[Event], sequences: Collection[int]) -> list[Waterfall]:
    """The waterfalls of those of `sequences` whose arrival or refusal is among `events`.

    One that still lives is explained up to the last event.
    """
    fold = ExplainFold(sequences)
    answered: dict[int, int] = {}
    now = 0
    for event in events:
        now = max(now, event.now)  # the edge's own come as they happen
        fold.apply(event)
        if isinstance(event, CallAnswered):
            answered.update(dict.fromkeys(event.sequences, event.now))
    found = {waterfall.sequence: waterfall for waterfall in fold.take()}
    for number in sequences:
        so_far = fold.peek(number, now)
        if so_far is not None:
            found[number] = so_far
    return [
        found[number].delivered(answered[number]) if number in answered else found[number]
        for number in sequences
        if number in found
    ]


class ExplainFold:
    """Follows `only` these sequences, or all of them; remembers those that live."""

    def __init__(self, only: Collection[int] | None = None) -> None:
        self._only = None if only is None else frozenset(only)
        self._lives: dict[int, Life] = {}
        self._flows: dict[int, Path] = {}  # of every live sequence, followed or not
        self._waiting: dict[Path, dict[int, Life]] = {}  # lives that may be picked
        self._running: dict[int, Life] = {}
        self._fresh: list[Life] = []  # arrived since the last step was planned
        self._newest: Life | None = None
        self._stalls: dict[Path, FlowStalled] = {}
        self._flights: deque[tuple[int, Rows]] = deque()
        self._lost = False  # the executor has died with what was in flight
        self._received: dict[int, int] = {}
        self._served: dict[Path, int] = {}
        self._ended: list[Waterfall] = []
        self._handlers: dict[type, Any] = {
            CallSubmitted: self._submitted,
            SequenceArrived: self._arrived,
            SequenceRefused: self._refused,
            SequenceAdmitted: self._admitted,
            SequenceForked: self._forked,
            SequencePreempted: self._preempted,
            SequenceStarted: self._started,
            SequenceEnded: self._end,
            StepPlanned: self._planned,
            StepCommitted: self._committed,
            ServiceCharged: self._charged,
            FlowStalled: self._stalled,
        }

    def apply(self, event: Event) -> None:
        handler = self._handlers.get(type(event))
        if handler:
            handler(event)

    def take(self) -> list[Waterfall]:
        """The waterfalls of what ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def peek(self, sequence: int, now: int) -> Waterfall | None:
        """The waterfall of a living sequence up to `now`; None if it is not known."""
        life = self._lives.get(sequence)
        return None if life is None else life.waterfall(now, self._part(life), self._served)

    # -- arrivals and ends -----------------------------------------------------------------------

    def _submitted(self, event: CallSubmitted) -> None:
        for sequence in event.sequences:
            if self._follows(sequence):
                self._received[sequence] = event.received
        while len(self._received) > MAX_LIVE:
            del self._received[next(iter(self._received))]

    def _arrived(self, event: SequenceArrived) -> None:
        self._flows[event.sequence] = event.flow
        while len(self._flows) > MAX_LIVE:
            self._forget(next(iter(self._flows)))
        if not self._follows(event.sequence):
            return
        life = Life(event, self._received.pop(event.sequence, None), self._served)
        self._lives[life.sequence] = life
        leader = self._newest
        if leader is not None and leader.sequence in self._lives and leader.leads(life):
            leader.lead(life)
        else:
            self._newest = life
            self._wait(life)

    def _refused(self, event: SequenceRefused) -> None:
        received = self._received.pop(event.sequence, None)
        if self._follows(event.sequence):
            self._ended.append(Life.refused(event, received))

    def _end(self, event: SequenceEnded) -> None:
        self._lost = self._lost or event.cause is Cause.ENGINE_FAILED
        life = self._lives.get(event.sequence)
        if life is not None:
            self._spend(life, event.now)
            self._hand_over(life)
            lag = list(self._flights)[1 if event.cause in LANDS else 0 :]
            life.lag_tokens = sum(rows.get(life.sequence, (0, 0))[1] for _, rows in lag)
            self._ended.append(life.waterfall(event.now, None, self._served, event.cause))
        self._forget(event.sequence)

    def _follows(self, sequence: int) -> bool:
        return self._only is None or sequence in self._only

    def _wait(self, life: Life) -> None:
        """`life` may be picked from the next plan on."""
        life.leader = None
        self._waiting.setdefault(life.flow, {})[life.sequence] = life
        self._fresh.append(life)

    def _forget(self, sequence: int) -> None:
        flow = self._flows.pop(sequence, None)
        life = self._lives.pop(sequence, None)
        self._running.pop(sequence, None)
        if flow is not None:
            self._stop_waiting(flow, sequence)
        if life is not None and life.leader is not None:
            life.leader.followers.remove(life)

    def _stop_waiting(self, flow: Path, sequence: int) -> None:
        waiting = self._waiting.get(flow)
        if waiting is not None:
            waiting.pop(sequence, None)
            if not waiting:
                del self._waiting[flow]

    def _hand_over(self, life: Life) -> None:
        """The next choice computes the shared prompt instead of `life`."""
        if life.followers:
            heir, *others = life.followers
            life.followers = []
            for other in others:
                heir.lead(other)
            self._wait(heir)

    # -- changes of place ------------------------------------------------------------------------

    def _admitted(self, event: SequenceAdmitted) -> None:
        life = self._lives.get(event.sequence)
        flow = self._flows.get(event.sequence)
        if life is not None:
            self._spend(life, event.now)
            life.settle(Part.OTHERS)
            self._enter(life, event.cached_tokens)
        if flow is not None:
            for other in self._waiting.get(flow, {}).values():
                self._spend(other, event.now)
                other.settle(Part.OWN_FLOW)

    def _forked(self, event: SequenceForked) -> None:
        life = self._lives.get(event.sequence)
        if life is not None:
            self._spend(life, event.now)
            if life.leader is not None:
                life.leader.followers.remove(life)
                life.leader = None
            self._enter(life, life.prompt_tokens)

    def _enter(self, life: Life, cached_tokens: int) -> None:
        self._stop_waiting(life.flow, life.sequence)
        life.run(cached_tokens, self._served)
        self._running[life.sequence] = life

    def _preempted(self, event: SequencePreempted) -> None:
        life = self._lives.get(event.sequence)
        if life is None:
            return
        self._spend(life, event.now)
        self._hand_over(life)
        self._running.pop(life.sequence, None)
        for _, rows in self._flights:
            rows.pop(life.sequence, None)  # what it drew is discarded
        life.take(event, keeps_kv=event.mode is PreemptMode.PAUSE)

    def _started(self, event: SequenceStarted) -> None:
        life = self._lives.get(event.sequence)
        if life is not None:
            self._spend(life, event.now)
            life.started = True

    # -- steps, stalls and service ---------------------------------------------------------------

    def _planned(self, event: StepPlanned) -> None:
        if self._lost:
            self._flights.clear()
            self._lost = False
        rows = self._rows(event)
        self._run_up_to(event.now, self._flights[0][1] if self._flights else rows)
        for life in self._fresh:
            if life.place is Place.WAITING and life.sequence in self._lives:
                self._spend(life, event.now)
                life.seen = True
        self._fresh.clear()
        self._flights.append((event.step, rows))
        for sequence, (start, count) in rows.items():
            life = self._lives[sequence]
            life.steps += 1
            if life.followers and start + count >= life.prompt_tokens:
                self._send_off(life)

    def _rows(self, event: StepPlanned) -> Rows:
        """The slices of the sequences that are followed."""
        concerned = self._lives.keys() & event.sequences
        if not concerned:
            return {}
        slices = zip(event.sequences, zip(event.starts, event.counts, strict=True), strict=True)
        return {sequence: where for sequence, where in slices if sequence in concerned}

    def _send_off(self, leader: Life) -> None:
        """Choices that found no room when their prompt was done wait for themselves now."""
        for follower in leader.followers:
            self._wait(follower)
            follower.seen = True
        leader.followers = []

    def _committed(self, event: StepCommitted) -> None:
        if self._flights:
            self._run_up_to(event.now, self._flights[0][1])
        while self._flights and self._flights[0][0] <= event.step:
            _, rows = self._flights.popleft()
            for sequence, (start, count) in rows.items():
                life = self._running.get(sequence)
                if life is not None and start + count >= life.regain:
                    life.regain = 0

    def _run_up_to(self, now: int, step: Mapping[int, object]) -> None:
        """The time up to `now` of all that runs, while `step` was computing."""
        for sequence, life in self._running.items():
            life.spend(life.computing if sequence in step else life.idle, now)

    def _stalled(self, event: FlowStalled) -> None:
        waiting = self._waiting.get(event.flow, {}).values()
        for life in waiting:
            self._spend(life, event.now)
            life.seen = True
        if event.cause in (None, Stall.SHARE):
            self._stalls.pop(event.flow, None)
            return
        self._stalls[event.flow] = event
        for life in waiting:
            first = event.sequence in (None, life.sequence)
            life.settle(Part.OTHERS if first else Part.OWN_FLOW)

    def _charged(self, event: ServiceCharged) -> None:
        for charge in event.charges():
            known = charge.flow in self._served or len(self._served) < MAX_FLOWS
            flow = charge.flow if known else OTHER
            tokens = charge.prompt_tokens + charge.output_tokens
            self._served[flow] = self._served.get(flow, 0) + tokens

    # -- parts -----------------------------------------------------------------------------------

    def _spend(self, life: Life, now: int) -> None:
        """Account for `life` up to `now`, through the choice whose parts it shares, if any."""
        leader = life.leader or life
        leader.spend(self._part(leader), now)

    def _part(self, life: Life) -> Part | None:
        """What `life` has been doing since it was last accounted for; None if not known yet."""
        if life.leader is not None:
            return self._part(life.leader)
        match life.place:
            case Place.WAITING:
                return self._wait_part(life)
            case Place.RUNNING:
                computing = self._flights and life.sequence in self._flights[0][1]
                return life.computing if computing else life.idle
            case Place.PAUSED:
                return life.idle
        return Part.PREEMPTED

    def _wait_part(self, life: Life) -> Part | None:
        if not life.seen:
            return Part.ROOM
        stall = self._stalls.get(life.flow)
        if stall is None:
            return None
        if stall.sequence not in (None, life.sequence):
            return Part.OWN_FLOW
        return Part.KV if stall.cause is Stall.KV_BLOCKS else Part.ROOM
