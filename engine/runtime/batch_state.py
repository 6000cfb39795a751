"""The persistent batch on the executor's side: what each slot holds between steps."""

import numpy as np

from engine.core.plan import IntArray, Join, LongArray, RowFailure, StepPlan
from engine.runtime.sampling_table import SamplingTable


class BatchState:
    """Tokens, block tables and sampling parameters by slot.

    `tokens` [slots, max_context] holds prompt, then output; `lengths` says how many are known and
    `prompts` how many of them are the prompt. `tables` [slots, max_blocks] are block tables,
    `block_counts` their lengths. `rejected` names slots whose sequence must fail alone, and why;
    their tokens are replaced by 0 so that the batch can still be computed. `tenures` counts the
    sequences that each slot has had, so that a token that comes late is not taken for the next
    one's.
    """

    def __init__(self, slots: int, max_context: int, block_size: int, vocab_size: int) -> None:
        self.max_context = max_context
        self.vocab_size = vocab_size
        self._block_size = block_size
        self.tokens: IntArray = np.zeros((slots, max_context), np.int32)
        self.lengths: IntArray = np.zeros(slots, np.int32)
        self.prompts: IntArray = np.zeros(slots, np.int32)
        self.tenures: LongArray = np.zeros(slots, np.int64)
        self.tables: IntArray = np.zeros((slots, -(-max_context // block_size)), np.int32)
        self.block_counts: IntArray = np.zeros(slots, np.int32)
        self.sampling = SamplingTable(slots)
        self.rejected: dict[int, str] = {}

    def apply(self, plan: StepPlan) -> IntArray:
        """Slots that left, then those that join, then growing block tables.

        Returns the place in its table of each of `plan.grown_blocks`.
        """
        for slot in plan.left:
            self.rejected.pop(slot, None)
            self.sampling.forget(slot)
        for join in plan.joined:
            self._join(join)
        places = np.empty(len(plan.grown_slots), np.int32)
        for index, slot in enumerate(plan.grown_slots.tolist()):
            places[index] = self.block_counts[slot]
            self.block_counts[slot] += 1
        self.tables[plan.grown_slots, places] = plan.grown_blocks
        return places

    def promise(self, slots: LongArray) -> IntArray:
        """Count one more token of each of `slots`, which is still to come; returns their places."""
        places: IntArray = self.lengths[slots]
        self.lengths[slots] = places + 1
        return places

    def fill(self, slots: LongArray, places: IntArray, tokens: IntArray) -> None:
        """Tokens promised to `slots` are known; the last one of a full context is not kept."""
        room = places < self.max_context
        self.tokens.reshape(-1)[slots[room] * self.max_context + places[room]] = tokens[room]

    def outputs(self, slots: LongArray) -> IntArray:
        """How many tokens each slot has drawn so far, those promised included."""
        return self.lengths[slots] - self.prompts[slots]

    def output(self, slot: int) -> list[int]:
        """The tokens that the slot has drawn so far."""
        drawn: list[int] = self.tokens[slot, self.prompts[slot] : self.lengths[slot]].tolist()
        return drawn

    def entered(self, plan: StepPlan) -> LongArray:
        """Blocks that this step begins to fill and leaves partly unwritten.

        Of a row's new blocks that can only be the last.
        """
        last = (plan.starts + plan.counts - 1) // self._block_size
        entered = (plan.counts > 0) & (last * self._block_size >= plan.starts)
        blocks: LongArray = self.tables[plan.slots[entered], last[entered]].astype(np.int64)
        return blocks

    def rejections(self, plan: StepPlan) -> dict[int, RowFailure]:
        """The rows of a plan whose sequence must fail."""
        if not self.rejected:
            return {}
        return {
            row: RowFailure(numerical=False, detail=self.rejected[slot])
            for row, slot in enumerate(plan.slots.tolist())
            if slot in self.rejected
        }

    def _join(self, join: Join) -> None:
        slot, known, blocks = join.slot, len(join.tokens), len(join.blocks)
        if known > self.max_context or blocks > self.tables.shape[1]:
            raise ValueError(
                f"sequence {join.sequence} has {known} tokens in {blocks} blocks, "
                f"more than max_context {self.max_context} allows"
            )
        self.tokens[slot, :known] = join.tokens
        self.lengths[slot] = known
        self.tenures[slot] += 1
        self.prompts[slot] = join.prompt_length
        self.tables[slot, :blocks] = join.blocks
        self.block_counts[slot] = blocks
        self.sampling.set(slot, join.sampling)
        self.rejected.pop(slot, None)
        self._check_ids(slot, join)

    def _check_ids(self, slot: int, join: Join) -> None:
        biased = np.array([token for token, _ in join.sampling.logit_bias], np.int64)
        stops = np.array(join.sampling.stop_token_ids, np.int64)
        for name, ids in (("prompt", join.tokens), ("logit_bias", biased), ("stop", stops)):
            outside = ids[(ids < 0) | (ids >= self.vocab_size)]
            if len(outside):
                self.rejected[slot] = (
                    f"{name} token id {outside[0]} is outside the vocabulary of {self.vocab_size}"
                )
                self.tokens[slot] = 0
                self.sampling.plain[slot] = True
