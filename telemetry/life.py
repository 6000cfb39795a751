"""The account that `telemetry.explain` keeps of one living sequence."""

from collections import deque
from collections.abc import Mapping
from enum import Enum, auto

from telemetry.events import Cause, SequenceArrived, SequencePreempted, SequenceRefused
from telemetry.waterfall import Part, Taken, Waterfall

TAKEN_KEPT = 16

Path = tuple[str, ...]
Service = Mapping[Path, int]  # tokens charged to each flow so far


class Place(Enum):
    """Where a sequence is, as far as its parts depend on it."""

    WAITING = auto()  # not admitted yet
    RUNNING = auto()
    PAUSED = auto()
    PREEMPTED = auto()


class Life:
    """Everything up to `cursor` is in `parts`, or in `pending` while its part is not known."""

    def __init__(self, event: SequenceArrived, received: int | None, served: Service) -> None:
        self.sequence = event.sequence
        self.flow = event.flow
        self.prompt_tokens = event.prompt_tokens
        self.place = Place.WAITING
        self.seen = False  # a step was planned since it came
        self.started = False  # has its first output token
        self.regain = 0  # positions to compute before it stands where it stood
        self.leader: Life | None = None  # the choice whose prompt it waits for
        self.followers: list[Life] = []  # choices that wait for its prompt
        self.steps = 0
        self.lag_tokens = 0
        self.lineage = event.lineage
        self.arrived = self._cursor = event.now
        self._received = received
        self._pending = 0
        self._parts = dict.fromkeys(Part, 0)
        if received is not None:
            self._parts[Part.GATEWAY] = event.now - received
        self._times_taken = 0
        self._taken: deque[Taken] = deque(maxlen=TAKEN_KEPT)
        self._served_before = dict(served)
        self._served: dict[Path, int] | None = None  # known once it is admitted

    @staticmethod
    def refused(event: SequenceRefused, received: int | None) -> Waterfall:
        """The waterfall of a sequence that never was."""
        wait = 0 if received is None else event.now - received
        return Waterfall(
            sequence=event.sequence,
            lineage=event.lineage,
            flow=(),
            cause=event.cause,
            received=received,
            arrived=event.now,
            ended=event.now,
            answered=None,
            until=event.now,
            parts=dict.fromkeys(Part, 0) | {Part.GATEWAY: wait},
            steps=0,
            times_taken=0,
            taken=(),
            lag_tokens=0,
            served={},
        )

    @property
    def computing(self) -> Part:
        """The part of a step that it is in."""
        if self.regain:
            return Part.PREEMPTED
        return Part.DECODE if self.started else Part.PREFILL

    @property
    def idle(self) -> Part:
        """The part of a step that it is not in, although it has its KV."""
        if self.regain:
            return Part.PREEMPTED
        return Part.PAUSED if self.started else Part.INTERLEAVED

    def leads(self, other: "Life") -> bool:
        """Whether `other`, which has just arrived, is a further choice of this one's request."""
        return (
            self.place is Place.WAITING
            and self.lineage == other.lineage
            and self._cursor == other.arrived
        )

    def lead(self, other: "Life") -> None:
        """`other` shares this one's parts from now on."""
        other.leader = self
        self.followers.append(other)

    def spend(self, part: Part | None, now: int) -> None:
        """The time up to `now` goes to `part`, None if that is not known yet."""
        span = now - self._cursor
        self._cursor = now
        if part is None:
            self._pending += span
        else:
            self._parts[part] += span
        for follower in self.followers:
            follower.spend(part, now)

    def settle(self, part: Part) -> None:
        """What was pending turns out to have gone to `part`."""
        self._parts[part] += self._pending
        self._pending = 0
        for follower in self.followers:
            follower.settle(part)

    def run(self, cached_tokens: int, served: Service) -> None:
        """It enters the batch with `cached_tokens` positions in its KV."""
        self.place = Place.RUNNING
        if cached_tokens >= self.regain:
            self.regain = 0
        if self._served is None:
            self._served = self._served_since_arrival(served)

    def take(self, event: SequencePreempted, *, keeps_kv: bool) -> None:
        """Its place is taken back."""
        self.place = Place.PAUSED if keeps_kv else Place.PREEMPTED
        self.regain = max(self.regain, event.tokens_lost)
        self._times_taken += 1
        self._taken.append(
            Taken(
                at=event.now,
                reason=event.reason,
                mode=event.mode,
                billed=event.billed,
                tokens_lost=event.tokens_lost,
                swapped_blocks=event.swapped_blocks,
            )
        )

    def waterfall(
        self, now: int, part: Part | None, served: Service, cause: Cause | None = None
    ) -> Waterfall:
        """What there is so far, the time up to `now` being `part`'s; ended if there is a cause."""
        parts = dict(self._parts)
        parts[part or Part.OTHERS] += now - self._cursor
        parts[Part.OTHERS] += self._pending
        return Waterfall(
            sequence=self.sequence,
            lineage=self.lineage,
            flow=self.flow,
            cause=cause,
            received=self._received,
            arrived=self.arrived,
            ended=None if cause is None else now,
            answered=None,
            until=now,
            parts=parts,
            steps=self.steps,
            times_taken=self._times_taken,
            taken=tuple(self._taken),
            lag_tokens=self.lag_tokens,
            served=self._served_since_arrival(served) if self._served is None else self._served,
        )

    def _served_since_arrival(self, served: Service) -> dict[Path, int]:
        before = self._served_before
        return {
            flow: tokens - before.get(flow, 0)
            for flow, tokens in served.items()
            if tokens != before.get(flow, 0)
        }
