"""A simulated executor behind the production seam: time from a cost profile, tokens from a rule.

It keeps the same per-slot state as a real executor and refuses plans that a real one could not
run, so that the kernel is tested against the contract and not against leniency.
"""

from collections.abc import Callable

import numpy as np

from engine.core.plan import BoolArray, IntArray, Join, LongArray, StepPlan, StepResult
from engine.sim.profile import CostProfile, StepShape, stall
from engine.sim.tokens import PerToken, TokenRule, TokenSource, counting_tokens

__all__ = ["PlanError", "SimExecutor", "TokenRule", "counting_tokens", "shape_of"]

EMPTY = -1


class PlanError(Exception):
    """A plan that no executor could run; a fault of the kernel."""


class SimExecutor:
    """Runs plans in virtual time. `advance` moves the clock by a step's duration on wait.

    `draw` says what the model answers: a `TokenSource`, or a function of (join, output index).
    """

    def __init__(
        self,
        profile: CostProfile,
        draw: TokenSource | TokenRule,
        advance: Callable[[int], None],
        *,
        block_size: int = 16,
        accept: Callable[[int, int], int] = lambda _sequence, drafts: drafts // 2,
    ) -> None:
        self._profile = profile
        self._source: TokenSource = PerToken(draw) if callable(draw) else draw
        self._advance = advance
        self._block_size = block_size
        self._accept = accept
        self._ids: LongArray = np.full(64, EMPTY, np.int64)  # sequence of a slot
        self._known: IntArray = np.zeros(64, np.int32)  # its tokens so far
        self._prompt: IntArray = np.zeros(64, np.int32)
        self._room: IntArray = np.zeros(64, np.int32)  # positions that its blocks can hold

    def launch(self, plan: StepPlan) -> StepResult:
        """Compute the plan's effect at once; its time passes in `wait`."""
        for slot in plan.left:
            if self._id_at(slot) == EMPTY:
                raise PlanError(f"slot {slot} is left while empty")
            self._ids[slot] = EMPTY
        for join in plan.joined:
            self._join(join)
        if len(plan.grown_slots):
            self._grow(plan.grown_slots)
        self._check(plan)
        counts, tokens = self._draw(plan)
        shape = shape_of(plan, self._block_size)
        duration = self._profile.duration(shape)
        return StepResult(plan.step, counts, tokens, duration, stall(self._profile, shape))

    def wait(self, ticket: StepResult) -> StepResult:
        """Let the step's time pass."""
        self._advance(ticket.duration)
        return ticket

    def _join(self, join: Join) -> None:
        slot = join.slot
        if self._id_at(slot) != EMPTY:
            raise PlanError(f"slot {slot} is joined while in use")
        self._ids[slot] = join.sequence
        self._known[slot] = len(join.tokens)
        self._prompt[slot] = join.prompt_length
        self._room[slot] = len(join.blocks) * self._block_size
        self._source.join(join)

    def _id_at(self, slot: int) -> int:
        while slot >= len(self._ids):
            more = len(self._ids)
            self._ids = np.concatenate([self._ids, np.full(more, EMPTY, np.int64)])
            self._known, self._prompt, self._room = (
                np.concatenate([array, np.zeros(more, np.int32)])
                for array in (self._known, self._prompt, self._room)
            )
        return int(self._ids[slot])

    def _grow(self, slots: LongArray) -> None:
        if (self._ids[slots] == EMPTY).any():
            raise PlanError(f"slot {_first(slots, self._ids[slots] == EMPTY)} grows while empty")
        np.add.at(self._room, slots, self._block_size)

    def _check(self, plan: StepPlan) -> None:
        """Every row belongs to its slot's sequence and has its tokens and blocks."""
        slots = plan.slots
        ends = plan.starts + plan.counts
        foreign = self._ids[slots] != plan.sequences
        unknown = ends - plan.drafts > self._known[slots]
        homeless = ends > self._room[slots]
        if not np.count_nonzero(foreign | unknown | homeless):
            return
        if foreign.any():
            raise PlanError(f"slot {_first(slots, foreign)} holds another sequence")
        kind = "token" if unknown.any() else "block"
        at = int(np.flatnonzero(unknown if unknown.any() else homeless)[0])
        raise PlanError(f"sequence {plan.sequences[at]} has no {kind} at {ends[at] - 1}")

    def _draw(self, plan: StepPlan) -> tuple[IntArray, IntArray]:
        """Tokens drawn by each row, and the tokens."""
        counts = plan.samples.astype(np.int32)
        drafted = np.count_nonzero(plan.drafts) > 0
        if np.count_nonzero(plan.samples) == len(counts) and not drafted:
            known = self._known[plan.slots]
            self._known[plan.slots] = known + 1
            return counts, self._source.draw(plan.slots, known - self._prompt[plan.slots])
        if drafted:
            for row in np.flatnonzero(plan.samples & (plan.drafts > 0)).tolist():
                counts[row] += self._accept(int(plan.sequences[row]), int(plan.drafts[row]))
        slots = np.repeat(plan.slots, counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        places = np.arange(len(slots), dtype=np.int32) - first
        indices = self._known[slots] - self._prompt[slots] + places
        self._known[plan.slots] += counts
        return counts, self._source.draw(slots, indices)


def shape_of(plan: StepPlan, block_size: int) -> StepShape:
    """What the time of a planned step depends on."""
    counts, ends = plan.counts, plan.starts + plan.counts
    decode = counts - plan.drafts == 1
    decoding = int(np.count_nonzero(decode))
    tokens = context = 0
    if decoding < len(counts):
        tokens, context = _prefill(plan, ~decode & (counts > 0))
        ends = ends[decode]
    out = sum([transfer.to_host for transfer in plan.transfers])
    return StepShape(
        prefill_tokens=tokens,
        prefill_context=context,
        decode_sequences=decoding,
        context_tokens=int(np.add.reduce(ends)),
        tokens_out=out * block_size,
        tokens_in=(len(plan.transfers) - out) * block_size,
    )


def _prefill(plan: StepPlan, rows: BoolArray) -> tuple[int, int]:
    """Prefill tokens, and the positions that each of them attends to, summed."""
    starts, counts = plan.starts[rows].astype(np.int64), plan.counts[rows].astype(np.int64)
    return int(counts.sum()), int((counts * starts + counts * (counts + 1) // 2).sum())


def _first(values: LongArray, where: BoolArray) -> int:
    return int(values[np.flatnonzero(where)[0]])
