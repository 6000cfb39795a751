"""A step under construction: rows, joins and block growth, then the finished plan."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.core.batch import Batch
from engine.core.plan import IntArray, Join, StepPlan, Transfer
from engine.core.sequence import Sequence
from policies.fairness.tree import Flow


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
class Bill:
    """One flow's account of one step: tokens, and what they cost."""

    prompt: int = 0  # computed for the first time
    output: int = 0
    rework: int = 0  # recomputed on this flow's account
    cost: float = 0.0


@dataclass(slots=True)
class DraftPlan:
    """Collects one step. `budget` is what is left of the step's positions."""

    budget: int
    decode_slots: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    decode_drafts: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    prefills: list[PrefillRow] = field(default_factory=list)
    forks: list[ForkRow] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)  # moves back from the host
    joined: list[Join] = field(default_factory=list)
    grown: list[tuple[int, int]] = field(default_factory=list)  # (slot, block)
    copies: list[tuple[int, int]] = field(default_factory=list)
    bills: dict[Flow, Bill] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether nothing would be computed."""
        return not len(self.decode_slots) and not self.prefills

    def grow(self, sequence: Sequence, blocks: list[int], batch: Batch) -> None:
        """Append `blocks` to the block table of a sequence already known to the executor."""
        sequence.blocks.extend(blocks)
        batch.blocks[sequence.slot] += len(blocks)
        self.grown.extend((sequence.slot, block) for block in blocks)

    def compose(
        self, step: int, batch: Batch, left: list[int], moves_out: list[Transfer]
    ) -> StepPlan:
        """The finished plan: decode rows in slot order, then prefills, then forks."""
        slots = _ints(
            [row.sequence.slot for row in self.prefills],
            [row.sequence.slot for row in self.forks],
            first=self.decode_slots,
        )
        decodes = len(self.decode_slots)
        rows = len(slots)
        prefill = slice(decodes, decodes + len(self.prefills))
        starts = batch.scheduled[slots]
        counts = np.zeros(rows, np.int32)
        counts[:decodes] = 1 + self.decode_drafts
        counts[prefill] = [row.count for row in self.prefills]
        drafts = np.zeros(rows, np.int32)
        drafts[:decodes] = self.decode_drafts
        samples = np.ones(rows, np.bool_)
        samples[prefill] = [row.samples for row in self.prefills]
        logits_rows = np.arange(rows, dtype=np.int32)
        row_of = {id(row): decodes + i for i, row in enumerate(self.prefills)}
        logits_rows[prefill.stop :] = [row_of[id(fork.parent)] for fork in self.forks]
        return StepPlan(
            step=step,
            sequences=batch.ids[slots],
            slots=slots,
            starts=starts,
            counts=counts,
            drafts=drafts,
            samples=samples,
            logits_rows=logits_rows,
            joined=tuple(self.joined),
            left=tuple(left),
            grown_slots=_ints([slot for slot, _ in self.grown]),
            grown_blocks=_ints([block for _, block in self.grown]),
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


def _ints(*parts: list[int], first: npt.NDArray[np.int32] | None = None) -> IntArray:
    arrays = [np.asarray(part, np.int32) for part in parts]
    return np.concatenate(arrays if first is None else [first, *arrays])
