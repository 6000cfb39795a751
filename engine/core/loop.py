"""The engine loop: drain commands, plan, run, commit. Serial, or overlapped with the device."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from engine.core.commands import Command
from engine.core.executor import Executor
from engine.core.plan import StepPlan, StepResult
from engine.core.scheduler import Scheduler

TicketT = TypeVar("TicketT")


class ExecutorFailedError(Exception):
    """The executor raised: it is lost as a whole, and so is what it held in memory."""


class Recorder(Protocol):
    """Keeps what is done to a kernel. Told before it is done, so that a fault is kept too."""

    def command(self, now: int, command: Command) -> None:
        """`command` is applied at `now`."""
        ...

    def plan(self, now: int) -> None:
        """A step is asked for at `now`."""
        ...

    def result(self, now: int, plan: StepPlan, result: StepResult) -> None:
        """`result` of `plan` is committed at `now`."""
        ...


class EngineLoop(Generic[TicketT]):
    """One iteration at a time of one engine. `now` gives monotonic nanoseconds.

    With `max_in_flight` 1 the loop is serial: the reference. With 2, a step is planned and
    launched while the previous one computes; the text is the same.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor[TicketT],
        now: Callable[[], int],
        recorder: Recorder | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._recorder = recorder
        self._executor = executor
        self._now = now
        self._flights: deque[tuple[StepPlan, TicketT]] = deque()

    def iterate(self, commands: Iterable[Command]) -> bool:
        """Apply `commands`, launch a step if one can be planned, commit the oldest if due.

        Returns whether any step was launched or committed; if not, only commands or the passing
        of time can change anything.
        """
        for command in commands:
            self._apply(command)
        plan = self._plan()
        if plan is not None:
            self._flights.append((plan, self._launch(plan)))
        full = len(self._flights) >= self.scheduler.config.max_in_flight
        if not self._flights or (plan is not None and not full):
            return plan is not None
        self._commit_oldest()
        return True

    def _apply(self, command: Command) -> None:
        now = self._now()
        if self._recorder:
            self._recorder.command(now, command)
        self.scheduler.apply(command, now)

    def _plan(self) -> StepPlan | None:
        now = self._now()
        if self._recorder:
            self._recorder.plan(now)
        return self.scheduler.plan(now)

    def _launch(self, plan: StepPlan) -> TicketT:
        try:
            return self._executor.launch(plan)
        except Exception as error:
            raise ExecutorFailedError(f"launch of step {plan.step}: {error!r}") from error

    def _commit_oldest(self) -> None:
        plan, ticket = self._flights.popleft()
        try:
            result = self._executor.wait(ticket)
        except Exception as error:
            raise ExecutorFailedError(f"step {plan.step}: {error!r}") from error
        now = self._now()
        if self._recorder:
            self._recorder.result(now, plan, result)
        self.scheduler.commit(plan, result, now)
