"""Step times as a recorded engine had them, and a cost profile fitted to them."""

import numpy as np
import numpy.typing as npt

from engine.core.commands import ExecutorLost
from engine.core.journal_records import Asked, Given, Landed
from engine.core.plan import StepPlan
from engine.sim.executor import shape_of
from engine.sim.profile import StepShape
from policies.step_time import StepWork
from telemetry.units import SECOND

Floats = npt.NDArray[np.float64]
REFITS = 4  # weights settle in two or three


class StepTimes:
    """Collects what steps held and how long they took, the host's work between them included."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._works: list[tuple[float, ...]] = []
        self._seconds: list[float] = []
        self._asked: dict[int, int] = {}  # step in flight -> when it was planned
        self._landed = 0  # the last commit
        self._idle = True  # nothing was computing at some moment since then

    def __len__(self) -> int:
        return len(self._seconds)

    def watch(self, record: Given | Asked | Landed, plan: StepPlan | None) -> None:
        """Take in one record of a log that is repeated, and the plan it made or landed."""
        match record:
            case Given(_, ExecutorLost()):
                self._asked.clear()
                self._idle = True
            case Asked(now):
                if plan is not None:
                    self._asked[plan.step] = now
                elif not self._asked:
                    self._idle = True
            case Landed(now) if plan is not None:
                asked = self._asked.pop(plan.step)
                began = asked if self._idle else self._landed
                if now > began:
                    self._works.append(work_of(shape_of(plan, self._block_size)).features())
                    self._seconds.append((now - began) / SECOND)
                self._landed, self._idle = now, False

    def fit(self) -> "ObservedProfile":
        """The best linear profile under which no amount of work makes a step faster.

        Squares of errors are weighed by the predicted time, not by the measured one, for that would
        pull predictions below the mean of noisy steps.
        """
        works, seconds = np.asarray(self._works), np.asarray(self._seconds)
        predicted = np.full(len(seconds), seconds.mean())
        for _ in range(REFITS):
            coefficients = non_negative(works / predicted[:, None], seconds / predicted)
            predicted = np.maximum(works @ coefficients, seconds.min())
        errors = np.abs(works @ coefficients / seconds - 1)
        return ObservedProfile(coefficients, float(np.median(errors)))


class ObservedProfile:
    """A linear cost profile; `error` is its median relative error on the steps it was fitted to."""

    def __init__(self, coefficients: Floats, error: float) -> None:
        self._coefficients = coefficients
        self.error = error

    def duration(self, shape: StepShape) -> int:
        """Nanoseconds that a step of this shape takes."""
        seconds = float(np.dot(self._coefficients, work_of(shape).features()))
        return max(1, round(seconds * SECOND))


def non_negative(rows: Floats, targets: Floats) -> Floats:
    """Least squares, leaving out whatever would need a negative coefficient, worst first."""
    used = np.arange(rows.shape[1])
    while True:
        found = np.linalg.lstsq(rows[:, used], targets, rcond=None)[0]
        if (found >= 0).all():
            break
        used = np.delete(used, int(np.argmin(found)))
    coefficients = np.zeros(rows.shape[1])
    coefficients[used] = found
    return coefficients


def work_of(shape: StepShape) -> StepWork:
    """A step's shape in the terms of the step-time model."""
    return StepWork(
        prefill_tokens=shape.prefill_tokens,
        prefill_context=float(shape.prefill_context),
        decode_sequences=shape.decode_sequences,
        context_tokens=shape.context_tokens,
    )
