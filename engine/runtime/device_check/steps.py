"""Steps made by hand: sequences of a given context, decoding or computing their prompt."""

from dataclasses import dataclass

import numpy as np

from engine.core.config import KernelConfig
from engine.core.plan import IntArray, Join, Sampling, StepPlan

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Batch:
    """`size` sequences that know `context` tokens each, in blocks of their own.

    What the KV of the positions before a step holds does not matter to time, so nothing is computed
    to fill it.
    """

    size: int
    context: int
    config: KernelConfig
    room: int = 0  # tokens that may follow
    sampling: Sampling = GREEDY

    @property
    def blocks(self) -> int:
        """Of each sequence."""
        return -(-(self.context + self.room) // self.config.block_size)

    @property
    def fits(self) -> bool:
        enough = self.size * self.blocks <= self.config.num_blocks
        return enough and self.context + self.room <= self.config.max_context

    def joins(self) -> tuple[Join, ...]:
        rng = np.random.default_rng(0)
        order = rng.permutation(self.size * self.blocks).astype(np.int32)
        return tuple(
            Join(
                slot=slot,
                sequence=slot,
                tokens=rng.integers(0, self.config.vocab_size, self.context).astype(np.int32),
                prompt_length=self.context,
                blocks=order[slot * self.blocks : (slot + 1) * self.blocks],
                sampling=self.sampling,
            )
            for slot in range(self.size)
        )

    def decode(self, step: int) -> StepPlan:
        """The `step`th decode of all; the first lets them join."""
        starts = np.full(self.size, self.context - 1 + step, np.int32)
        joined = () if step else self.joins()
        return step_plan(step, starts, np.ones(self.size, np.int32), joined=joined)

    def prefill(self) -> StepPlan:
        """The whole prompt of all."""
        counts = np.full(self.size, self.context, np.int32)
        return step_plan(0, np.zeros(self.size, np.int32), counts, joined=self.joins())

    def leave(self) -> StepPlan:
        none = np.empty(0, np.int32)
        return step_plan(0, none, none, left=tuple(range(self.size)))


def step_plan(
    step: int,
    starts: IntArray,
    counts: IntArray,
    joined: tuple[Join, ...] = (),
    left: tuple[int, ...] = (),
) -> StepPlan:
    slots = np.arange(len(starts))
    return StepPlan(
        step=step,
        sequences=slots,
        slots=slots,
        starts=starts,
        counts=counts,
        drafts=np.zeros(len(starts), np.int32),
        samples=np.ones(len(starts), np.bool_),
        logits_rows=slots,
        joined=joined,
        left=left,
    )
