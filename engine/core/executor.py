"""The seam between the kernel and whatever computes: torch, a simulator, another machine."""

from typing import Generic, Protocol, TypeVar

from engine.core.plan import StepPlan, StepResult

TicketT = TypeVar("TicketT")


class Executor(Protocol, Generic[TicketT]):
    """Runs plans in the order they were launched.

    An exception from either method means that the executor as a whole is lost: the host fails the
    running work and builds a new one. A fault of a single sequence is a `RowFailure` instead.
    """

    def launch(self, plan: StepPlan) -> TicketT:
        """Start computing `plan` and return at once where the device allows it."""
        ...

    def wait(self, ticket: TicketT) -> StepResult:
        """Block until the plan behind `ticket` is computed."""
        ...
