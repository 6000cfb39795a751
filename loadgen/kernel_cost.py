"""Host cost of the kernel: plan and commit of a steady decode step, without any executor's work."""

import time
from dataclasses import dataclass, field

import numpy as np

from engine.core.commands import FlowNode, Submit
from engine.core.config import KernelConfig
from engine.core.hashing import block_hashes, salt_of
from engine.core.plan import Sampling, StepPlan, StepResult
from engine.core.scheduler import Scheduler
from telemetry.lineage import Lineage

PROMPT = (
    64  # tokens, and up to a block more: so in each step some fill a block, and never all at once
)
STEP_NS = 20_000_000


@dataclass(slots=True)
class KernelCost:
    """Microseconds of each measured step: of those that only decode, in which nobody enters."""

    plan: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)

    @property
    def both(self) -> list[float]:
        """Plan and commit of the same step together."""
        return [a + b for a, b in zip(self.plan, self.commit, strict=True)]


def measure(running: int, waiting: int, tenants: int, steps: int) -> KernelCost:
    """Steady decode: `running` sequences that never end, `waiting` more behind, all backlogged."""
    kernel = KernelConfig(
        num_blocks=running * 300,
        max_running=running,
        max_step_tokens=running * 2 * PROMPT,
        max_queued_requests=running + waiting,
        tenant_queued_requests=running + waiting,
        max_context=4096,
        vocab_size=50_000,
    )
    scheduler = Scheduler(kernel)
    for number in range(1, running + waiting + 1):
        scheduler.apply(_submit(number, f"tenant-{number % tenants}", kernel.block_size), number)
    now = running + waiting
    cost = KernelCost()
    for step in range(steps + 10):
        now += STEP_NS
        began = time.perf_counter_ns()
        plan = scheduler.plan(now)
        planned = time.perf_counter_ns()
        if plan is None:
            raise RuntimeError("the kernel found nothing to compute in a steady batch")
        result = _result(plan)
        now += STEP_NS
        handed = time.perf_counter_ns()
        scheduler.commit(plan, result, now)
        committed = time.perf_counter_ns()
        scheduler.take_outputs()
        scheduler.take_events()
        if step >= 10 and not plan.joined:  # before, prompts are computed
            cost.plan.append((planned - began) / 1e3)
            cost.commit.append((committed - handed) / 1e3)
    return cost


def _submit(number: int, tenant: str, block_size: int) -> Submit:
    length = PROMPT + number * 7 % block_size
    prompt = ((np.arange(length) * 31 + number * 977) % 50_000).astype(np.int32)
    salt = salt_of(tenant)
    return Submit(
        lineage=Lineage(tenant, f"task-{number}", "run", "attempt", f"request-{number}"),
        sequences=(number,),
        flow=(FlowNode(tenant),),
        prompt=prompt,
        salt=salt,
        block_hashes=block_hashes(prompt, salt, block_size),
        max_tokens=4000,
        sampling=Sampling(temperature=0.0),
    )


def _result(plan: StepPlan) -> StepResult:
    drawn = np.ones(len(plan.slots), np.int32) * plan.samples
    return StepResult(
        step=plan.step,
        token_counts=drawn.astype(np.int32),
        tokens=np.full(int(drawn.sum()), 7, np.int32),
        duration=STEP_NS,
    )
