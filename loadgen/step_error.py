"""How well the step-time model foretells the steps of the live engine, and how fast."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

from loadgen.limits import Finding, between
from loadgen.live import LiveError, LiveModel, Step
from loadgen.reality import kernel_for, make_workload, run_live
from loadgen.stats import quantile
from loadgen.step_times import work_of
from policies.step_time import StepTimeModel, StepWork

WARM_UP = 50  # steps that are learned from before errors count
ERROR_LIMIT = 8.0  # percent
TIME_LIMIT = 20.0  # microseconds
TIMINGS = 9  # batches of predictions that are timed


@dataclass(frozen=True, slots=True)
class StepError:
    """Relative errors of the steps after the warm-up, each predicted before it was learned from.

    `set_aside` of them the model took for hiccups; their errors count all the same. `microseconds`
    are those of a prediction, one value a timed batch.
    """

    steps: int
    errors: tuple[float, ...]
    set_aside: int
    microseconds: tuple[float, ...]


def measure(
    model: LiveModel, rate: float, seconds: float, report: Callable[[str], None]
) -> StepError:
    """Arrivals climb from a twentieth of `rate` a second to all of it, so that batches of every

    size occur; the steps are then foretold in the order in which they ran.
    """
    kernel = kernel_for(model.kernel, model.kernel.max_running)
    workload = make_workload(rate / 20, seconds, 1, rate_to=rate)
    report(f"{len(workload.requests)} requests arrive in {seconds:g} s")
    _, steps = asyncio.run(run_live(workload, kernel, model))
    return replay(steps)


def replay(steps: Sequence[Step]) -> StepError:
    """Predict each step's time in the executor, then learn from it, as the kernel does: from every

    step that holds prompts and every fourth that only decodes. LiveError when the steps end with
    the warm-up.
    """
    if len(steps) <= WARM_UP:
        raise LiveError(f"{len(steps)} steps are too few: the first {WARM_UP} are to learn from")
    model = StepTimeModel()
    works = [work_of(step.shape) for step in steps]
    errors, set_aside = [], 0
    for number, (step, work) in enumerate(zip(steps, works, strict=True)):
        predicted = model.predict(work)
        learns = work.prefill_tokens > 0 or number % 4 == 0
        hiccup = learns and not model.observe(work, step.device)
        if number >= WARM_UP:
            errors.append(abs(predicted / step.device - 1))
            set_aside += hiccup
    return StepError(len(steps), tuple(errors), set_aside, _timed(model, works))


def _timed(model: StepTimeModel, works: list[StepWork]) -> tuple[float, ...]:
    times = []
    for _ in range(TIMINGS):
        began = perf_counter_ns()
        for work in works:
            model.predict(work)
        times.append((perf_counter_ns() - began) / 1e3 / len(works))
    return tuple(times)


def findings(result: StepError) -> list[Finding]:
    """Mean error and time of a prediction, against their limits."""
    errors = sorted(result.errors)
    note = (
        f"median {errors[len(errors) // 2]:.1%}, p95 {quantile(errors, 0.95):.1%}, "
        f"{result.set_aside} of {len(errors)} taken for hiccups"
    )
    return [
        Finding("mean error", 100 * sum(errors) / len(errors), ERROR_LIMIT, "%", note=note),
        Finding(
            "a prediction",
            median(result.microseconds),
            TIME_LIMIT,
            "us",
            note=between(result.microseconds),
        ),
    ]
