"""Decode rows and the KV blocks they grow into; preemption when there are none left."""

import numpy as np
import numpy.typing as npt

from engine.core.draft import DraftPlan
from engine.core.plan import BoolArray, IntArray, LongArray
from engine.core.preempt import preempt
from engine.core.sequence import Sequence
from engine.core.state import KernelState
from policies.fairness.lag import counters_of
from policies.preemption import Candidate, choose_victim
from telemetry.events import PreemptReason

Rows = npt.NDArray[np.intp]


def plan_decodes(state: KernelState, draft: DraftPlan, now: int) -> None:
    """Give every running sequence that awaits one token its row, and its block where needed."""
    while True:
        slots = (ready_slots(state) & (_gap(state) == 1)).nonzero()[0]
        drafts = _drafts(state, slots)
        growing, need = _growth(state, slots, drafts)
        short = sum(need) - state.ledger.available
        if short <= 0 or short <= state.ledger.pending_release():
            break
        if not _make_room(state, slots[growing], now):
            break
    if short > 0:
        slots, drafts = _affordable(state, slots, drafts, growing, need)
        growing, need = _growth(state, slots, drafts)
    for slot, count in zip(slots[growing].tolist(), need, strict=True):
        draft.grow(state.batch.at(slot), state.ledger.allocate(count), state.batch)
    draft.decode_slots = slots
    draft.decode_drafts = drafts
    draft.budget -= len(slots) + int(np.add.reduce(drafts))


def ready_slots(state: KernelState) -> BoolArray:
    """Slots [max_running] whose sequence may be planned now."""
    batch = state.batch
    ready: BoolArray = (batch.ids >= 0) & (batch.known + batch.pending < batch.limit)
    ready &= ~((batch.host_bound & (batch.pending > 0)) | (batch.drafting > 0))
    if state.stand_back:
        ready &= ~np.isin(batch.flow, [flow.index for flow in state.stand_back])
    return ready


def make_room_for_someone(state: KernelState, now: int) -> bool:
    """Break a deadlock of half-computed prompts: the one that stands worst gives way.

    A lone one that runs has all the memory there is; a lone one that is paused may keep out
    whoever's turn it is.
    """
    if state.batch.running < 2 and not state.paused:
        return False
    slots = (state.batch.ids >= 0).nonzero()[0]
    return _make_room(state, slots, now)


def _gap(state: KernelState) -> IntArray:
    batch = state.batch
    gap: IntArray = batch.known + batch.pending - batch.scheduled
    return gap


def _drafts(state: KernelState, slots: LongArray) -> IntArray:
    """Speculative positions after each decode position; none while its token is in flight."""
    batch, most = state.batch, state.config.draft_tokens
    if not most:
        return np.zeros(len(slots), np.int32)
    room = batch.limit[slots] - batch.known[slots] - 1
    usable = (batch.pending[slots] == 0) & (batch.known[slots] > batch.prompt[slots])
    drafts: IntArray = np.where(usable, np.clip(room, 0, most), 0).astype(np.int32)
    return drafts


def _growth(state: KernelState, slots: LongArray, drafts: IntArray) -> tuple[Rows, list[int]]:
    """The rows whose blocks do not hold their next positions, and how many more each needs."""
    batch, size = state.batch, state.config.block_size
    beyond = batch.scheduled[slots] + 1 + drafts - batch.blocks[slots] * size
    growing = (beyond > 0).nonzero()[0]
    return growing, (-(-beyond[growing] // size)).tolist()


def _affordable(
    state: KernelState, slots: LongArray, drafts: IntArray, growing: Rows, need: list[int]
) -> tuple[LongArray, IntArray]:
    """Leave out rows, last first, whose blocks come free only once a step in flight lands."""
    late = growing[np.cumsum(need) > state.ledger.available]
    return np.delete(slots, late), np.delete(drafts, late)


def _make_room(state: KernelState, growers: LongArray, now: int) -> bool:
    """Preempt the running sequence that stands worst; False if nothing would be gained."""
    holders = [*state.batch.live(), *state.paused.values()]
    victim = choose_victim(_candidate(state, sequence) for sequence in holders)
    if victim is None:
        return False
    served = [s for s in (state.batch.sequences[slot] for slot in growers) if s is not None]
    others = [s for s in served if s.id != victim.sequence]
    standing = state.waiting.place
    beneficiary = min(others, key=lambda s: (counters_of(s.flow), standing(s)), default=None)
    preempt(state, state.sequences[victim.sequence], PreemptReason.KV_GROWTH, beneficiary, now)
    return True


def _candidate(state: KernelState, sequence: Sequence) -> Candidate:
    ledger = state.ledger
    return Candidate(
        sequence=sequence.id,
        served=counters_of(sequence.flow),
        order=state.waiting.place(sequence),
        blocks_freed=sum(1 for block in sequence.blocks if ledger.references(block) == 1),
    )
