"""The persistent batch on the executor's side: what each slot holds between steps."""

import numpy as np

from engine.core.plan import IntArray, Join, StepPlan
from engine.runtime.sampling_table import SamplingTable


class BatchState:
    """Tokens, block tables and sampling parameters by slot.

    `tokens` [slots, max_context] holds prompt, then output; `lengths` says how many are known and
    `prompts` how many of them are the prompt. `tables` [slots, max_blocks] are block tables,
    `block_counts` their lengths. `rejected` names slots whose sequence must fail alone, and why;
    their tokens are replaced by 0 so that the batch can still be computed.
    """

    def __init__(self, slots: int, max_context: int, block_size: int, vocab_size: int) -> None:
        self.max_context = max_context
        self._vocab_size = vocab_size
        self.tokens: IntArray = np.zeros((slots, max_context), np.int32)
        self.lengths: IntArray = np.zeros(slots, np.int32)
        self.prompts: IntArray = np.zeros(slots, np.int32)
        self.tables: IntArray = np.zeros((slots, -(-max_context // block_size)), np.int32)
        self.block_counts: IntArray = np.zeros(slots, np.int32)
        self.sampling = SamplingTable(slots)
        self.rejected: dict[int, str] = {}

    def apply(self, plan: StepPlan) -> None:
        """Slots that left, then those that join, then growing block tables."""
        for slot in plan.left:
            self.rejected.pop(slot, None)
            self.sampling.forget(slot)
        for join in plan.joined:
            self._join(join)
        for slot, block in zip(plan.grown_slots.tolist(), plan.grown_blocks.tolist(), strict=True):
            self.tables[slot, self.block_counts[slot]] = block
            self.block_counts[slot] += 1

    def append(self, slots: IntArray, tokens: IntArray) -> None:
        """Add one drawn token to each of `slots`; the last token of a full context is not kept."""
        room = self.lengths[slots] < self.max_context
        kept = slots[room]
        self.tokens[kept, self.lengths[kept]] = tokens[room]
        self.lengths[slots] += 1

    def outputs(self, slots: IntArray) -> IntArray:
        """How many tokens each slot has drawn so far."""
        return self.lengths[slots] - self.prompts[slots]

    def output(self, slot: int) -> list[int]:
        """The tokens that the slot has drawn so far."""
        drawn: list[int] = self.tokens[slot, self.prompts[slot] : self.lengths[slot]].tolist()
        return drawn

    def _join(self, join: Join) -> None:
        slot, known, blocks = join.slot, len(join.tokens), len(join.blocks)
        if known > self.max_context or blocks > self.tables.shape[1]:
            raise ValueError(
                f"sequence {join.sequence} has {known} tokens in {blocks} blocks, "
                f"more than max_context {self.max_context} allows"
            )
        self.tokens[slot, :known] = join.tokens
        self.lengths[slot] = known
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
            outside = ids[(ids < 0) | (ids >= self._vocab_size)]
            if len(outside):
                self.rejected[slot] = (
                    f"{name} token id {outside[0]} is outside the vocabulary of {self._vocab_size}"
                )
                self.tokens[slot] = 0
                self.sampling.plain[slot] = True
