"""Usage: a fold over the event log that says which account used how much of what.

Work is counted when its step lands: output tokens as they are handed out, prompt tokens as they are
first computed or found in the cache, once for all choices of a call. Device time is a step's
duration divided among the token positions it computed, to the nanosecond.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

from telemetry.billing_events import Repeat, ServiceCharged
from telemetry.events import (
    Event,
    SequenceAdmitted,
    SequenceArrived,
    SequenceEnded,
    StepCommitted,
    StepPlanned,
)
from telemetry.lineage import Lineage


class Account(NamedTuple):
    """Whose usage it is; `key` is the public id of an API key."""

    tenant: str
    key: str


@dataclass(slots=True)
class Usage:
    """Sums. Tokens are counted once each, device time is in nanoseconds.

    `requests` were taken in. `prompt_tokens` include the `cached_tokens`. `aborted_tokens` were
    computed in vain: for a sequence that was over, or beyond its stop string. Of what
    preemption made to be computed again, `recomputed_tokens` were the account's own and
    `rework_tokens` are at its expense, with their device time; so is the time for which steps
    waited for KV that moved for its sake. A correction may be negative.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    aborted_tokens: int = 0
    recomputed_tokens: int = 0
    rework_tokens: int = 0
    device_ns: int = 0

    def add(self, more: "Usage") -> None:
        """Count what `more` counts, too."""
        for column in COLUMNS:
            setattr(self, column, getattr(self, column) + getattr(more, column))


COLUMNS = tuple(column.name for column in fields(Usage))

Used = dict[Account, Usage]


@dataclass(slots=True)
class _Prompt:
    """The prompt that the choices of one call share: its length, and how much of it is counted."""

    lineage: Lineage
    arrived: int
    tokens: int
    counted: int = 0


@dataclass(slots=True)
class _Life:
    """A sequence of which something may still land."""

    account: Account
    prompt: _Prompt
    output: int = 0
    over: bool = False


class UsageFold:
    """The usage of one engine, step by step. Give it every event, in order."""

    def __init__(self) -> None:
        self._lives: dict[int, _Life] = {}
        self._newest: _Prompt | None = None
        self._flights: dict[int, StepPlanned] = {}
        self._over: list[SequenceEnded] = []  # by these events
        self._late: list[int] = []  # ended, with a step in flight
        self._landed = (0, 1)  # the last step's duration and positions
        self._used: defaultdict[Account, Usage] = defaultdict(Usage)

    def fold(self, events: Iterable[Event]) -> Used:
        """What `events` add to each account's usage; empty when it is nothing."""
        self._used = defaultdict(Usage)
        for event in events:
            match event:
                case StepCommitted():
                    self._committed(event)
                case StepPlanned():
                    self._planned(event)
                case ServiceCharged():
                    for repeat in event.repeats:
                        self._repeated(repeat)
                    for holdup in event.holdups:
                        self._used[Account(holdup.tenant, holdup.key)].device_ns += holdup.duration
                case SequenceArrived():
                    self._arrived(event)
                case SequenceAdmitted():
                    self._admitted(event)
                case SequenceEnded():
                    self._over.append(event)
                    if event.sequence in self._lives:
                        self._lives[event.sequence].over = True
        # The step that brings a sequence's last tokens is reported after its end.
        if self._over or self._late:
            self._bury()
        return self._used

    def _arrived(self, event: SequenceArrived) -> None:
        account = Account(event.lineage.tenant, event.lineage.key)
        prompt = self._newest
        if prompt is None or (prompt.lineage, prompt.arrived) != (event.lineage, event.now):
            prompt = self._newest = _Prompt(event.lineage, event.now, event.prompt_tokens)
            self._used[account].requests += 1
        self._lives[event.sequence] = _Life(account, prompt)

    def _admitted(self, event: SequenceAdmitted) -> None:
        life = self._lives.get(event.sequence)
        if life is None:
            return
        found = min(event.cached_tokens, life.prompt.tokens) - life.prompt.counted
        if found > 0:
            life.prompt.counted += found
            usage = self._used[life.account]
            usage.prompt_tokens += found
            usage.cached_tokens += found

    def _planned(self, event: StepPlanned) -> None:
        if self._flights and event.step <= next(reversed(self._flights)):
            self._flights.clear()  # of a kernel that was thrown away
        self._flights[event.step] = event

    def _committed(self, event: StepCommitted) -> None:
        plan = self._flights.get(event.step)
        for step in [step for step in self._flights if step <= event.step]:
            del self._flights[step]
        if plan is not None:
            self._land(plan, event)

    def _land(self, plan: StepPlanned, event: StepCommitted) -> None:
        """Runs for every row of every step, so it looks each thing up once."""
        lives, used = self._lives, self._used
        drawn = dict(zip(event.sequences, event.output_tokens, strict=True))
        positions: dict[Account, int] = {}
        for number, start, count in zip(plan.sequences, plan.starts, plan.counts, strict=True):
            life = lives.get(number)
            if life is None:
                continue
            account, prompt = life.account, life.prompt
            positions[account] = positions.get(account, 0) + count
            if number in drawn:
                life.output += drawn[number]
                used[account].output_tokens += drawn[number]
            elif life.over:
                used[account].aborted_tokens += count
                continue
            if prompt.counted < prompt.tokens:
                self._count_prompt(life, start, start + count)
        total = sum(positions.values())
        if total:
            computing = event.duration - event.stall  # the rest is in the step's bills
            self._landed = (computing, total)
            self._divide(computing, positions, total)

    def _count_prompt(self, life: _Life, start: int, end: int) -> None:
        prompt = life.prompt
        fresh = min(end, prompt.tokens) - max(start, prompt.counted)
        if fresh > 0:
            prompt.counted += fresh
            self._used[life.account].prompt_tokens += fresh

    def _divide(self, duration: int, positions: dict[Account, int], total: int) -> None:
        before, done = 0, 0
        for account, count in positions.items():
            done += count
            until = duration * done // total
            self._used[account].device_ns += until - before
            before = until

    def _repeated(self, repeat: Repeat) -> None:
        life = self._lives.get(repeat.sequence)
        if life is None:
            return
        duration, total = self._landed
        moved = duration * repeat.tokens // total
        victim, payer = self._used[life.account], self._used[Account(repeat.tenant, repeat.key)]
        victim.recomputed_tokens += repeat.tokens
        payer.rework_tokens += repeat.tokens
        victim.device_ns -= moved
        payer.device_ns += moved

    def _bury(self) -> None:
        for end in self._over:
            life = self._lives.get(end.sequence)
            if life is None:
                continue
            discarded = life.output - end.output_tokens
            if discarded > 0:
                usage = self._used[life.account]
                usage.output_tokens -= discarded
                usage.aborted_tokens += discarded
            self._late.append(end.sequence)
        self._over.clear()
        flying = {number for plan in self._flights.values() for number in plan.sequences}
        for number in self._late:
            if number not in flying:
                del self._lives[number]
        self._late = [number for number in self._late if number in flying]
