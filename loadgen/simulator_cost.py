"""How fast the simulator runs: steps and sequence-steps a second of one core."""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from engine.core.commands import FlowNode
from engine.core.config import KernelConfig
from engine.sim.profile import A10G_LLAMA2_7B
from engine.sim.tokens import TrueLengths
from loadgen.simulation import Rules, Simulation
from loadgen.workload import Request, Workload
from policies.config import PolicyConfig
from policies.fairness.config import FairnessConfig

CLIENTS = 10
PROMPT, OUTPUT = 100, 6000
WAITING = 100
WARM_UP = 200  # steps


@dataclass(frozen=True, slots=True)
class Speed:
    """Steps a second of wall time with so many sequences running, everything included."""

    running: int
    steps_per_second: float

    @property
    def sequence_steps_per_second(self) -> float:
        return self.running * self.steps_per_second


def measure(running: int, steps: int, repeat: int) -> Iterator[Speed]:
    """Steady decoding of `running` sequences with others waiting, `repeat` times `steps` steps.

    Counted are the arrival list, the scheduler, the simulated executor and the recorder.
    """
    simulation = _full(running)
    advance = simulation.steps()
    for _ in range(WARM_UP):
        next(advance)
    for _ in range(repeat):
        started = perf_counter()
        for _ in range(steps):
            next(advance)
        yield Speed(running, steps / (perf_counter() - started))
    if simulation.scheduler.running != running or not simulation.scheduler.waiting:
        raise RuntimeError("the batch did not stay full; measure fewer steps")


def _full(running: int) -> Simulation:
    count = running + WAITING
    requests = tuple(Request(0, i % CLIENTS, PROMPT, OUTPUT, origin=i) for i in range(count))
    flows = tuple((FlowNode(f"client-{i}"),) for i in range(CLIENTS))
    kernel = KernelConfig(
        num_blocks=running * (PROMPT + OUTPUT) // 16 + running,
        max_running=running,
        max_step_tokens=running * PROMPT + running,
        vocab_size=TrueLengths.VOCABULARY,
        prefix_cache=False,
        policy=PolicyConfig(fairness=FairnessConfig(name="vtc")),
    )
    return Simulation(Workload(flows, requests), kernel, A10G_LLAMA2_7B, Rules())
