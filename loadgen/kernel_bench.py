"""Host cost of the kernel and speed of the simulator, beside their limits."""

from collections.abc import Callable
from statistics import median

from loadgen import kernel_cost
from loadgen.limits import Finding, between
from loadgen.simulator_cost import measure as simulator
from loadgen.stats import quantile

RUNNING, WAITING = 256, 1000
STEP_LIMIT = 250.0  # microseconds, median at 100 tenants
TAIL_LIMIT = 500.0  # microseconds, p99 at 1,000 tenants
STEPS_LIMIT = 8_000.0  # simulated steps a second with 25 running
SEQUENCE_STEPS_LIMIT = 600_000.0  # a second with 256 running
SIMULATED = 1000  # steps of a run of the simulator; a quarter of that with 256 running

Report = Callable[[str], None]


def measure(steps: int, repeat: int, report: Report) -> list[Finding]:
    """Each figure is the median of `repeat` runs; `steps` is how many steps of the kernel each."""
    few = _kernel(100, steps, repeat, report)
    many = _kernel(1000, steps, repeat, report)
    report("simulator, 25 running")
    quick = [speed.steps_per_second for speed in simulator(25, SIMULATED, repeat)]
    report("simulator, 256 running")
    wide = [speed.sequence_steps_per_second for speed in simulator(256, SIMULATED // 4, repeat)]
    return [
        _cost("plan + commit, 100 tenants, median", [median(run) for run in few], STEP_LIMIT),
        _cost("plan + commit, 1,000 tenants, p99", [_p99(run) for run in many], TAIL_LIMIT),
        _speed("simulated steps, 25 running", quick, STEPS_LIMIT),
        _speed("sequence-steps, 256 running", wide, SEQUENCE_STEPS_LIMIT),
    ]


def _kernel(tenants: int, steps: int, repeat: int, report: Report) -> list[list[float]]:
    """Microseconds of the steps of each run."""
    report(f"kernel, {RUNNING} running, {WAITING:,} waiting, {tenants:,} tenants")
    return [kernel_cost.measure(RUNNING, WAITING, tenants, steps).both for _ in range(repeat)]


def _p99(values: list[float]) -> float:
    return quantile(values, 0.99)


def _cost(name: str, values: list[float], limit: float) -> Finding:
    return Finding(name, median(values), limit, "us", note=between(values))


def _speed(name: str, values: list[float], limit: float) -> Finding:
    return Finding(name, median(values), limit, "/s", "least", between(values))
