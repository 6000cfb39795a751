"""What another policy would have done with the work of a recorded command log.

The production scheduler is run again, under the recorded policy and under another one, over a
simulated device: both, so that the difference between policies is not taken for that between the
device and its model. What is kept from the recording: when each request came and from whom, its
prompt and what of it was cached by whom, its deadlines and caps, every cancellation and hang-up at
its instant, and how many tokens it wanted to generate. What is a model: the time of a step, fitted
to the recorded ones. What is not known: how long an output cut off in the recording would have
become (the mean of the tenant's longer ones stands for it, or its cap), and what callers would have
done had they been answered at other times.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from statistics import fmean

from engine.core.commands import Command, ExecutorLost, Finish, Submit
from engine.core.config import KernelConfig
from engine.core.journal_records import STOP, Given, JournalError
from engine.core.loop import EngineLoop
from engine.core.plan import StepResult
from engine.core.replay import ForetoldScheduler, Hashes
from engine.sim.executor import SimExecutor
from engine.sim.profile import CostProfile
from engine.sim.tokens import TrueLengths
from loadgen.command_log import CommandLogFile, Verifier
from loadgen.outcomes import COMPLETE, Outcome, outcomes
from loadgen.step_times import StepTimes
from policies.config import PolicyConfig
from telemetry.clock import VirtualClock
from telemetry.events import Cause, Event, SequenceEnded

ENDLESS = 1 << 30  # output tokens of what only its cap ends


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Three runs of the same work, each by tenant."""

    recorded: dict[str, Outcome]
    again: dict[str, Outcome]  # the recorded policy on the simulated device
    other: dict[str, Outcome]
    steps: int  # that step times were fitted to
    error: float  # median relative error of that fit


def what_if(log: CommandLogFile, policy: PolicyConfig) -> WhatIf:
    """Raises JournalError when the log cannot be used, or does not replay in this version."""
    config = log.header.kernel
    times = StepTimes(config.block_size)
    verifier = Verifier(log, times.watch)
    verdict = verifier.run()
    if verdict.difference is not None:
        raise JournalError(
            f"this version decides otherwise than the recording one, first at line "
            f"{verdict.difference.line}: replay the log without --policy to see how"
        )
    if not len(times):
        raise JournalError("no step was recorded, so there is nothing to take step times from")
    profile = times.fit()
    work = Work.of_log(verifier.commands, verifier.events, log.generated())
    return WhatIf(
        recorded=outcomes(verifier.events),
        again=outcomes(Rerun(work, config, profile).run()),
        other=outcomes(Rerun(work, replace(config, policy=policy), profile).run()),
        steps=len(times),
        error=profile.error,
    )


@dataclass(frozen=True, slots=True)
class Work:
    """Commands, the hashes of blocks that sequences generate, and how long these want to become."""

    given: tuple[Given, ...]
    lengths: Mapping[int, int]
    hashes: Hashes

    @classmethod
    def of_log(cls, given: Sequence[Given], events: Sequence[Event], hashes: Hashes) -> "Work":
        """The commands of a log without what only followed from its schedule."""
        kept = tuple(
            Given(
                one.now, _with_stop(one.command) if isinstance(one.command, Submit) else one.command
            )
            for one in given
            if not isinstance(one.command, Finish)  # its length says it
        )
        return cls(kept, _lengths(given, events), hashes)


class Rerun:
    """The production scheduler over `work`, from the first recorded instant until all is done."""

    def __init__(self, work: Work, config: KernelConfig, profile: CostProfile) -> None:
        self._given, self._applied = work.given, 0
        self._lengths = work.lengths
        self._config = config
        self._profile = profile
        self._clock = VirtualClock(start=work.given[0].now if work.given else 0)
        self.scheduler = ForetoldScheduler(config, work.hashes)
        self._loop = self._new_loop()

    @property
    def now(self) -> int:
        """Nanoseconds of virtual time."""
        return self._clock.now()

    def run(self) -> list[Event]:
        """Everything decided."""
        events: list[Event] = []
        while self._advance():
            events += self.scheduler.take_events()
        return events + self.scheduler.take_events()

    def advance(self) -> bool:
        """One step of the model, or one jump over idle time; False when all is done."""
        going_on = self._advance()
        self.scheduler.take_events()
        return going_on

    def advance_until(self, wanted: Callable[[Command], bool]) -> Given:
        """Go on until a wanted command is due, and return it. Raises ValueError if none comes."""
        while True:
            for one in self._given[self._applied :]:
                if one.now > self.now:
                    break
                if wanted(one.command):
                    return one
            if not self.advance():
                raise ValueError("the work has no such command, or it was applied already")

    def fork(self, without: Callable[[Command], bool]) -> "Rerun":
        """A copy that goes on from here without some of the commands that are left."""
        done, left = self._given[: self._applied], self._given[self._applied :]
        given = (*done, *(one for one in left if not without(one.command)))
        shared = {id(one): one for one in (self._config, self._lengths)}
        return deepcopy(self, {**shared, id(self._given): given})

    def _advance(self) -> bool:
        due = self._take_due()  # may replace the loop
        worked = self._loop.iterate(due)
        self.scheduler.take_outputs()
        return worked or self._skip()

    def _new_loop(self) -> EngineLoop[StepResult]:
        source = TrueLengths(self._lengths, self._config.max_running)
        size = self._config.block_size
        executor = SimExecutor(self._profile, source, self._clock.advance, block_size=size)
        return EngineLoop(self.scheduler, executor, self._clock.now)

    def _take_due(self) -> list[Command]:
        due: list[Command] = []
        while self._applied < len(self._given) and self._given[self._applied].now <= self.now:
            command = self._given[self._applied].command
            self._applied += 1
            due.append(command)
            if isinstance(command, ExecutorLost):
                self._loop = self._new_loop()
        return due

    def _skip(self) -> bool:
        """Let time pass to the next instant at which anything can happen; False if none comes."""
        left = self._applied < len(self._given)
        wakeup = self.scheduler.next_wakeup(self.now)
        instants = [] if wakeup is None else [wakeup]
        if left:
            instants.append(self._given[self._applied].now)
        if not instants or not (left or self.scheduler.live()):
            return False
        self._clock.advance_to(max(self.now + 1, min(instants)))
        return True


def _with_stop(submit: Submit) -> Submit:
    """With a stop token, so that it can end at its true length whatever ended it then."""
    return replace(submit, sampling=replace(submit.sampling, stop_token_ids=(STOP,)))


def _lengths(given: Sequence[Given], events: Sequence[Event]) -> Mapping[int, int]:
    """How many tokens each sequence would generate."""
    ends = {event.sequence: event for event in events if isinstance(event, SequenceEnded)}
    complete: defaultdict[str, list[int]] = defaultdict(list)
    for end in ends.values():
        if end.cause in COMPLETE:
            complete[end.lineage.tenant].append(end.output_tokens)
    lengths = {}
    for one in given:
        if isinstance(one.command, Submit):
            others = complete.get(one.command.lineage.tenant, [])
            for number in one.command.sequences:
                lengths[number] = _length(ends.get(number), others)
    return lengths


def _length(end: SequenceEnded | None, others: Sequence[int]) -> int:
    if end is not None and end.cause is Cause.LENGTH:
        return ENDLESS
    if end is not None and end.cause in COMPLETE:
        return end.output_tokens
    so_far = 0 if end is None else end.output_tokens
    longer = [length for length in others if length > so_far]
    return round(fmean(longer)) if longer else ENDLESS
