"""A simulated executor behind the production seam: time from a cost profile, tokens from a hash.

It keeps the same per-slot state as a real executor and refuses plans that a real one could not
run, so that the kernel is tested against the contract and not against leniency.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.core.plan import Join, StepPlan, StepResult
from engine.sim.profile import CostProfile, StepShape


class PlanError(Exception):
    """A plan that no executor could run; a fault of the kernel."""


@dataclass(slots=True)
class _Slot:
    join: Join
    tokens: list[int]
    blocks: list[int]

    @property
    def output(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.join.prompt_length


TokenRule = Callable[[Join, int], int]


def counting_tokens(vocab_size: int) -> TokenRule:
    """Token i of a sequence is a function of its seed, prompt and i alone; never a stop token."""

    def draw(join: Join, index: int) -> int:
        mixed = (join.sampling.seed * 1_000_003 + int(join.tokens[0]) * 7919 + index * 31) & 0xFFFF
        token = mixed % vocab_size
        banned = join.sampling.stop_token_ids
        while token in banned:
            token = (token + 1) % vocab_size
        return token

    return draw


class SimExecutor:
    """Runs plans in virtual time. `advance` moves the clock by a step's duration on wait."""

    def __init__(
        self,
        profile: CostProfile,
        draw: TokenRule,
        advance: Callable[[int], None],
        *,
        block_size: int = 16,
        accept: Callable[[int, int], int] = lambda _sequence, drafts: drafts // 2,
    ) -> None:
        self._profile = profile
        self._draw = draw
        self._advance = advance
        self._block_size = block_size
        self._accept = accept
        self._slots: dict[int, _Slot] = {}

    def launch(self, plan: StepPlan) -> StepResult:
        """Compute the plan's effect at once; its time passes in `wait`."""
        for slot in plan.left:
            del self._slots[slot]
        for join in plan.joined:
            if join.slot in self._slots:
                raise PlanError(f"slot {join.slot} is joined while in use")
            self._slots[join.slot] = _Slot(join, join.tokens.tolist(), join.blocks.tolist())
        for slot, block in zip(plan.grown_slots.tolist(), plan.grown_blocks.tolist(), strict=True):
            self._slots[slot].blocks.append(block)
        return self._compute(plan)

    def wait(self, ticket: StepResult) -> StepResult:
        """Let the step's time pass."""
        self._advance(ticket.duration)
        return ticket

    def _compute(self, plan: StepPlan) -> StepResult:
        counts: list[int] = []
        tokens: list[int] = []
        for row in range(len(plan.slots)):
            drawn = self._row(plan, row)
            counts.append(len(drawn))
            tokens.extend(drawn)
        return StepResult(
            step=plan.step,
            token_counts=np.asarray(counts, np.int32),
            tokens=np.asarray(tokens, np.int32),
            duration=self._profile.duration(_shape(plan)),
        )

    def _row(self, plan: StepPlan, row: int) -> list[int]:
        slot = self._slots[int(plan.slots[row])]
        start, count = int(plan.starts[row]), int(plan.counts[row])
        drafts = int(plan.drafts[row])
        if slot.join.sequence != int(plan.sequences[row]):
            raise PlanError(f"slot {plan.slots[row]} holds another sequence")
        if start + count - drafts > len(slot.tokens):
            raise PlanError(f"sequence {slot.join.sequence} has no token at {start + count - 1}")
        if start + count > len(slot.blocks) * self._block_size:
            raise PlanError(f"sequence {slot.join.sequence} has no block at {start + count - 1}")
        if not plan.samples[row]:
            return []
        accepted = 1 + (self._accept(slot.join.sequence, drafts) if drafts else 0)
        drawn = [self._draw(slot.join, slot.output + i) for i in range(accepted)]
        slot.tokens.extend(drawn)
        return drawn


def _shape(plan: StepPlan) -> StepShape:
    decode = plan.counts - plan.drafts == 1
    prefill = plan.counts > 1
    ends = plan.starts + plan.counts
    return StepShape(
        prefill_tokens=int(plan.counts[prefill & (plan.drafts == 0)].sum()),
        decode_sequences=int(decode.sum()),
        context_tokens=int(ends[decode].sum()),
    )
