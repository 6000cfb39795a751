"""A kernel on a simulated executor and a virtual clock, with its laws checked at every turn."""

from collections import Counter, defaultdict

import numpy as np

from engine.core.commands import Cancel, Command, FlowNode, Submit
from engine.core.config import KernelConfig
from engine.core.hashing import block_hashes, salt_of
from engine.core.loop import EngineLoop
from engine.core.outputs import Finished
from engine.core.plan import Sampling
from engine.core.scheduler import Scheduler
from engine.sim.executor import SimExecutor, TokenRule, counting_tokens
from engine.sim.profile import A10G_LLAMA2_7B, CostProfile
from telemetry.billing_events import Charge, ServiceCharged
from telemetry.clock import VirtualClock
from telemetry.events import (
    Cause,
    Event,
    SequenceArrived,
    SequenceEnded,
    SequenceRefused,
    StepPlanned,
)
from telemetry.lineage import Lineage, Scope

VOCABULARY = 1000


def config(**changes) -> KernelConfig:
    defaults = {
        "num_blocks": 64,
        "max_running": 8,
        "max_step_tokens": 64,
        "min_chunk": 8,
        "max_context": 512,
        "vocab_size": VOCABULARY,
    }
    return KernelConfig(**(defaults | changes))


def won(tenant: str, task: str, attempt: str, run: str | None = None) -> Cancel:
    """The end of a race."""
    winner = Scope(tenant, task, run, attempt)
    return Cancel(Scope(tenant, task), Cause.LOST_RACE, remember=True, spare=winner)


class World:
    """Drives the production scheduler; `step` checks every law before and after."""

    def __init__(
        self,
        kernel: KernelConfig | None = None,
        *,
        profile: CostProfile = A10G_LLAMA2_7B,
        draw: TokenRule | None = None,
        executor=None,
    ) -> None:
        self.config = kernel or config()
        self.clock = VirtualClock(start=1)
        self.scheduler = Scheduler(self.config)
        self.executor = executor or SimExecutor(
            profile, draw or counting_tokens(VOCABULARY), self.clock.advance
        )
        self.use(self.executor)
        self.events: list[Event] = []
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.ended: dict[int, Finished] = {}
        self._next = 1

    def use(self, executor) -> None:
        """Run on `executor` from now on."""
        self.executor = executor
        self.loop = EngineLoop(self.scheduler, executor, self.clock.now)

    def submit(
        self,
        tenant: str = "a",
        prompt: int | list[int] = 10,
        output: int = 5,
        *,
        n: int = 1,
        weight: float = 1.0,
        priority: int = 0,
        task: str = "task",
        run: str = "run",
        attempt: str = "attempt",
        key: str = "",
        salt: bytes | None = None,
        sampling: Sampling | None = None,
        **fields,
    ) -> tuple[int, ...]:
        """`tenant` may be a path such as "a/user": the weight is then the tenant's own."""
        numbers = tuple(range(self._next, self._next + n))
        self._next += n
        tenant, *below = tenant.split("/")
        tokens = prompt if isinstance(prompt, list) else [numbers[0] % VOCABULARY] * prompt
        array = np.asarray(tokens, np.int32)
        salt = salt or salt_of(tenant)
        self.apply(
            Submit(
                lineage=Lineage(tenant, task, run, attempt, f"req-{numbers[0]}", key),
                sequences=numbers,
                flow=(FlowNode(tenant, weight, priority), *map(FlowNode, below)),
                prompt=array,
                salt=salt,
                block_hashes=block_hashes(array, salt, self.config.block_size),
                max_tokens=output,
                sampling=sampling or Sampling(temperature=0.0),
                **fields,
            )
        )
        return numbers

    def apply(self, command: Command) -> None:
        self.scheduler.apply(command, self.clock.now())
        self._collect()

    def step(self) -> bool:
        worked = self.loop.iterate(())
        self._collect()
        return worked

    def run(self, most: int = 10_000) -> int:
        for count in range(most):
            if not self.step():
                wakeup = self.scheduler.next_wakeup(self.clock.now())
                if wakeup is None or not (self.scheduler.running or self.scheduler.waiting):
                    return count
                self.clock.advance_to(wakeup)
        raise AssertionError(f"still busy after {most} steps: {self.scheduler!r}")

    def _collect(self) -> None:
        self.scheduler.verify()
        batch = self.scheduler.take_outputs()
        for sequence, token in zip(batch.sequences, batch.tokens, strict=True):
            assert sequence not in self.ended, f"token for {sequence} after its end"
            self.tokens[sequence].append(token)
        for sequence, finished in batch.ended:
            assert sequence not in self.ended, f"{sequence} ended twice"
            self.ended[sequence] = finished
        events = self.scheduler.take_events()
        for event in events:
            if isinstance(event, StepPlanned):
                self._check_budgets(event)
        self.events.extend(events)

    def _check_budgets(self, step: StepPlanned) -> None:
        assert sum(step.counts) <= self.config.max_step_tokens
        assert step.running <= self.config.max_running
        total = step.free_blocks + step.cached_blocks + step.held_blocks
        assert total == self.config.num_blocks
        assert len(set(step.sequences)) == len(step.sequences)

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    def charges(self) -> list[Charge]:
        """All bills so far."""
        return [bill for event in self.of(ServiceCharged) for bill in event.charges()]

    def check_idle(self) -> None:
        """Nothing is left over: every arrival ended exactly once and every block came back."""
        assert self.scheduler.running == self.scheduler.waiting == 0
        blocks = self.scheduler.free_blocks + self.scheduler.cached_blocks
        assert blocks == self.config.num_blocks
        arrived = Counter(e.sequence for e in self.of(SequenceArrived))
        terminal = Counter(e.sequence for e in self.of(SequenceEnded))
        assert arrived == terminal
        assert set(arrived.values()) <= {1}
        refused = {e.sequence for e in self.of(SequenceRefused)}
        assert set(self.ended) == set(arrived) | refused
