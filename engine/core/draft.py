"""A step under construction: rows, joins and block growth, then the finished plan."""

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from engine.core.batch import Batch
from engine.core.bills import Bills
from engine.core.plan import IntArray, Join, LongArray, StepPlan, Transfer
from engine.core.sequence import Sequence

NONE: IntArray = np.empty(0, np.int32)
NO_SLOTS: LongArray = np.empty(0, np.int64)

Rows = TypeVar("Rows", IntArray, LongArray)


@dataclass(slots=True)
class PrefillRow:
    """A slice of more than a decode: [start, start + count) of `need` tokens still to compute."""

    sequence: Sequence
    start: int
    count: int
    need: int

    @property
    def samples(self) -> bool:
        """Whether the slice reaches the last known token and so draws the next one."""
        return self.count == self.need


@dataclass(slots=True)
class ForkRow:
    """A choice that draws its first token from the logits of `parent`'s slice."""

    sequence: Sequence
    parent: PrefillRow


@dataclass(slots=True)
class DraftPlan:
    """Collects one step. `budget` is what is left of the step's positions, and `least` the smallest

    piece of a prompt worth a place among them.
    """

    budget: int
    least: int
    decode_slots: LongArray = field(default_factory=lambda: NO_SLOTS)
    decode_drafts: IntArray = field(default_factory=lambda: NONE)
    prefills: list[PrefillRow] = field(default_factory=list)
    forks: list[ForkRow] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)  # moves back from the host
    joined: list[Join] = field(default_factory=list)
    grown_slots: list[int] = field(default_factory=list)  # one entry for each of `grown_blocks`
    grown_blocks: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    bills: Bills = field(default_factory=Bills)

    @property
    def empty(self) -> bool:
        """Whether nothing would be computed."""
        return not len(self.decode_slots) and not self.prefills

    def grow(self, sequence: Sequence, blocks: list[int], batch: Batch) -> None:
        """Append `blocks` to the block table of a sequence already known to the executor."""
        sequence.blocks.extend(blocks)
        batch.blocks[sequence.slot] += len(blocks)
        self.grown_slots += [sequence.slot] * len(blocks)
        self.grown_blocks += blocks

    def compose(
        self, step: int, batch: Batch, left: list[int], moves_out: list[Transfer]
    ) -> StepPlan:
        """The finished plan: decode rows in slot order, then prefills, then forks."""
        decodes = len(self.decode_slots)
        slots, drafts, counts = self.decode_slots, self.decode_drafts, 1 + self.decode_drafts
        samples = np.ones(decodes + len(self.prefills) + len(self.forks), np.bool_)
        logits_rows = batch.rows[: len(samples)].copy()
        if self.prefills:
            after = decodes + len(self.prefills)
            none = [0] * len(self.forks)
            entering = [row.sequence.slot for row in self.prefills]
            entering += [row.sequence.slot for row in self.forks]
            slots = _with(slots, entering)
            counts = _with(counts, [*(row.count for row in self.prefills), *none])
            drafts = _with(drafts, [0] * len(entering))
            samples[decodes:after] = [row.samples for row in self.prefills]
            row_of = {id(row): decodes + i for i, row in enumerate(self.prefills)}
            logits_rows[after:] = [row_of[id(fork.parent)] for fork in self.forks]
        return StepPlan(
            step=step,
            sequences=batch.ids[slots],
            slots=slots,
            starts=batch.scheduled[slots],
            counts=counts,
            drafts=drafts,
            samples=samples,
            logits_rows=logits_rows,
            joined=tuple(self.joined),
            left=tuple(left),
            grown_slots=np.asarray(self.grown_slots, np.int64),
            grown_blocks=np.asarray(self.grown_blocks, np.int32),
            transfers=(*moves_out, *self.transfers),
            copies=tuple(self.copies),
        )


def join_of(sequence: Sequence, slot: int) -> Join:
    """How the executor is told of a sequence that enters the batch."""
    return Join(
        slot=slot,
        sequence=sequence.id,
        tokens=sequence.tokens,
        prompt_length=sequence.prompt_length,
        blocks=np.asarray(sequence.blocks, np.int32),
        sampling=sequence.sampling,
    )


def _with(rows: Rows, more: list[int]) -> Rows:
    return np.concatenate([rows, np.asarray(more, rows.dtype)])
