"""The engine loop: drain commands, plan, run, commit. Serial, or overlapped with the device."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from engine.core.commands import Command
from engine.core.executor import Executor
from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler

TicketT = TypeVar("TicketT")


class ExecutorFailedError(Exception):
    """The executor raised: it is lost as a whole, and so is what it held in memory."""


class EngineLoop(Generic[TicketT]):
    """One iteration at a time of one engine. `now` gives monotonic nanoseconds.

    With `max_in_flight` 1 the loop is serial: the reference. With 2, a step is planned and
    launched while the previous one computes; the text is the same.
    """

    def __init__(
        self, scheduler: Scheduler, executor: Executor[TicketT], now: Callable[[], int]
    ) -> None:
        self.scheduler = scheduler
        self._executor = executor
        self._now = now
        self._flights: deque[tuple[StepPlan, TicketT]] = deque()

    def iterate(self, commands: Iterable[Command]) -> bool:
        """Apply `commands`, launch a step if one can be planned, commit the oldest if due.

        Returns whether any step was launched or committed; if not, only commands or the passing
        of time can change anything.
        """
        for command in commands:
            self.scheduler.apply(command, self._now())
        plan = self.scheduler.plan(self._now())
        if plan is not None:
            self._flights.append((plan, self._launch(plan)))
        full = len(self._flights) >= self.scheduler.config.max_in_flight
        if not self._flights or (plan is not None and not full):
            return plan is not None
        self._commit_oldest()
        return True

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
        self.scheduler.commit(plan, result, self._now())
