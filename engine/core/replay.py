"""A recorded command log done to a fresh kernel again."""

from collections import deque
from collections.abc import Mapping, Sequence

from engine.core.commands import ExecutorLost
from engine.core.config import KernelConfig
from engine.core.journal_records import Asked, Given, Landed
from engine.core.plan import StepPlan, StepResult
from engine.core.scheduler import Scheduler
from telemetry.events import Event

# sequence -> the number of the first block that it generates, and the hashes from there on
Hashes = Mapping[int, tuple[int, Sequence[bytes]]]


class OutOfStepError(Exception):
    """A recorded result does not belong to what the replay has planned."""


class ForetoldScheduler(Scheduler):
    """The production scheduler where tokens are placeholders: block hashes come from a log."""

    def __init__(self, config: KernelConfig, generated: Hashes) -> None:
        super().__init__(config)
        self._generated = generated

    def commit(self, plan: StepPlan, result: StepResult, now: int) -> None:
        """Commit, with the hashes at hand that sealing blocks asks for, and no others later."""
        rows = []
        for number, count in zip(plan.sequences.tolist(), plan.counts.tolist(), strict=True):
            sequence = self._state.sequences.get(number)
            if sequence is not None:
                known = len(sequence.hashes)
                first, hashes = self._generated.get(number, (known, ()))
                most = count // self.config.block_size + 2  # blocks that the slice may fill
                sequence.hashes += hashes[known - first : known - first + most]
                rows.append((sequence, known))
        super().commit(plan, result, now)
        for sequence, known in rows:
            del sequence.hashes[max(known, sequence.sealed) :]


class Replay:
    """Repeats records one by one; `events` gives what the kernel decided."""

    def __init__(self, config: KernelConfig, generated: Hashes) -> None:
        self._scheduler = ForetoldScheduler(config, generated)
        self._flights: deque[StepPlan] = deque()
        self.steps = 0

    def repeat(self, record: Given | Asked | Landed) -> StepPlan | None:
        """Do what `record` says; returns the plan made or landed. Raises OutOfStepError."""
        plan = None
        match record:
            case Given(now, command):
                self._scheduler.apply(command, now)
                if isinstance(command, ExecutorLost):
                    self._flights.clear()
            case Asked(now):
                plan = self._scheduler.plan(now)
                if plan is not None:
                    self._flights.append(plan)
            case Landed(now, result):
                plan = self._land(result, now)
        return plan

    def take_events(self) -> list[Event]:
        """The decisions since the last call, in order."""
        self._scheduler.take_outputs()  # placeholders, which nobody reads
        return self._scheduler.take_events()

    def _land(self, result: StepResult, now: int) -> StepPlan:
        if not self._flights or self._flights[0].step != result.step:
            raise OutOfStepError(f"step {result.step} has a result in the log, but was not planned")
        plan = self._flights.popleft()
        if len(plan.slots) != len(result.token_counts):
            raise OutOfStepError(
                f"step {result.step} has {len(result.token_counts)} rows in the log, "
                f"and {len(plan.slots)} in the replay"
            )
        self.steps += 1
        self._scheduler.commit(plan, result, now)
        return plan
