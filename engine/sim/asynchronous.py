"""An asynchronous fake device: it computes on a thread of its own, in launch order.

Puts any executor behind the timing of a GPU, whose work is still in flight when `launch` returns,
so that overlapped planning can be tested without one.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from engine.core.executor import Executor
from engine.core.plan import StepPlan, StepResult


class AsynchronousExecutor:
    """Runs `inner` on one worker thread; `wait` blocks until its step is done."""

    def __init__(self, inner: Executor[Any]) -> None:
        self._inner = inner
        self._device = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fake-device")

    def launch(self, plan: StepPlan) -> Future[StepResult]:
        """Queue the plan on the device and return at once."""
        return self._device.submit(self._compute, plan)

    def wait(self, ticket: Future[StepResult]) -> StepResult:
        """Block until the plan behind `ticket` is computed."""
        return ticket.result()

    def close(self) -> None:
        """Stop the device thread once its queue is empty."""
        self._device.shutdown()

    def _compute(self, plan: StepPlan) -> StepResult:
        return self._inner.wait(self._inner.launch(plan))
