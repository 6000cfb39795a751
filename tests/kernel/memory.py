"""An executor that keeps what every KV block holds, and checks it before each row computes.

A position's KV depends on all tokens up to it, so its stand-in is a hash of them. A block that was
freed too early, shared wrongly, copied, swapped or rolled back wrongly shows as a wrong hash.
"""

from itertools import pairwise

from engine.core.plan import StepPlan, StepResult
from engine.sim.executor import SimExecutor, counting_tokens
from engine.sim.profile import A10G_LLAMA2_7B, CostProfile

BLOCK = 16


class CheckingExecutor:
    """SimExecutor with a memory. Drafts write stand-ins that no token matches."""

    def __init__(self, vocabulary: int, advance, profile: CostProfile = A10G_LLAMA2_7B) -> None:
        self.inner = SimExecutor(profile, counting_tokens(vocabulary), advance)
        self.device: dict[tuple[int, int], int] = {}
        self.host: dict[tuple[int, int], int] = {}
        self.tokens: dict[int, list[int]] = {}
        self.tables: dict[int, list[int]] = {}

    def launch(self, plan: StepPlan):
        for join in plan.joined:
            self.tokens[join.slot] = join.tokens.tolist()
            self.tables[join.slot] = join.blocks.tolist()
        for slot, block in zip(plan.grown_slots.tolist(), plan.grown_blocks.tolist(), strict=True):
            self.tables[slot].append(block)
        for move in plan.transfers:
            self._move(move)
        ticket = self.inner.launch(plan)
        for row in range(len(plan.slots)):
            self._compute(plan, row)
        self._append(plan, self.inner.wait(ticket) if isinstance(ticket, StepResult) else ticket)
        for source, target in plan.copies:
            for at in range(BLOCK):
                self.device[target, at] = self.device.get((source, at), 0)
        return ticket

    def wait(self, ticket):
        return ticket

    def _move(self, move) -> None:
        for at in range(BLOCK):
            if move.to_host:
                self.host[move.host_block, at] = self.device.get((move.device_block, at), 0)
            else:
                self.device[move.device_block, at] = self.host.get((move.host_block, at), 0)

    def _compute(self, plan: StepPlan, row: int) -> None:
        slot, start = int(plan.slots[row]), int(plan.starts[row])
        count, drafts = int(plan.counts[row]), int(plan.drafts[row])
        if not count:
            return  # a fork: its own block is filled by a copy after this step
        tokens, table = self.tokens[slot], self.tables[slot]
        value = 0
        for position in range(start + count):
            known = position < len(tokens)
            value = hash((value, tokens[position])) if known else hash((value, "draft", row))
            cell = (table[position // BLOCK], position % BLOCK)
            if position < start:
                assert self.device.get(cell) == value, (
                    f"step {plan.step}: sequence {plan.sequences[row]} finds somebody else's KV "
                    f"at position {position}"
                )
            else:
                assert known or position >= start + count - drafts
                self.device[cell] = value

    def _append(self, plan: StepPlan, result: StepResult) -> None:
        ends = [0, *result.token_counts.cumsum().tolist()]
        for row, (first, last) in enumerate(pairwise(ends)):
            slot = int(plan.slots[row])
            self.tokens[slot].extend(result.tokens[first:last].tolist())
            if plan.drafts[row]:  # an accepted draft was the token itself
                self._accept(slot, int(plan.starts[row]), last - first)

    def _accept(self, slot: int, start: int, accepted: int) -> None:
        value = 0
        for position in range(start + accepted):
            value = hash((value, self.tokens[slot][position]))
            if position > start:
                self.device[self.tables[slot][position // BLOCK], position % BLOCK] = value
