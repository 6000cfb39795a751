"""Decode rows and the KV blocks they grow into; preemption when there are none left."""

import numpy as np

from engine.core.draft import DraftPlan
from engine.core.plan import BoolArray, IntArray
from engine.core.preempt import preempt
from engine.core.sequence import Sequence
from engine.core.state import KernelState
from policies.preemption import Candidate, choose_victim
from telemetry.events import PreemptReason


def plan_decodes(state: KernelState, draft: DraftPlan, now: int) -> None:
    """Give every running sequence that awaits one token its row, and its block where needed."""
    while True:
        slots = (ready_slots(state) & (_gap(state) == 1)).nonzero()[0].astype(np.int32)
        drafts = _drafts(state, slots)
        need = _missing_blocks(state, slots, drafts)
        short = int(np.add.reduce(need)) - state.ledger.available
        if short <= 0 or short <= state.ledger.pending_release():
            break
        if not _make_room(state, slots[need > 0], now):
            break
    if short > 0:
        slots, drafts, need = _affordable(state, slots, drafts, need)
    growing = need.nonzero()[0]
    for slot, count in zip(slots[growing].tolist(), need[growing].tolist(), strict=True):
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
    """Break a deadlock of half-computed prompts: the one that stands worst gives way."""
    if state.batch.running + len(state.paused) < 2:
        return False
    slots = (state.batch.ids >= 0).nonzero()[0].astype(np.int32)
    return _make_room(state, slots, now)


def _gap(state: KernelState) -> IntArray:
    batch = state.batch
    gap: IntArray = batch.known + batch.pending - batch.scheduled
    return gap


def _drafts(state: KernelState, slots: IntArray) -> IntArray:
    """Speculative positions after each decode position; none while its token is in flight."""
    batch, most = state.batch, state.config.draft_tokens
    if not most:
        return np.zeros(len(slots), np.int32)
    room = batch.limit[slots] - batch.known[slots] - 1
    usable = (batch.pending[slots] == 0) & (batch.known[slots] > batch.prompt[slots])
    drafts: IntArray = np.where(usable, np.clip(room, 0, most), 0).astype(np.int32)
    return drafts


def _missing_blocks(state: KernelState, slots: IntArray, drafts: IntArray) -> IntArray:
    batch, size = state.batch, state.config.block_size
    end = batch.scheduled[slots] + 1 + drafts
    missing: IntArray = np.maximum(-(-end // size) - batch.blocks[slots], 0)
    return missing


def _affordable(
    state: KernelState, slots: IntArray, drafts: IntArray, need: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Leave out rows, last first, whose blocks come free only once a step in flight lands."""
    fits = (np.cumsum(need) <= state.ledger.available) | (need == 0)
    return slots[fits], drafts[fits], need[fits]


def _make_room(state: KernelState, growers: IntArray, now: int) -> bool:
    """Preempt the running sequence that stands worst; False if nothing would be gained."""
    holders = [*state.batch.live(), *state.paused.values()]
    victim = choose_victim(_candidate(state, sequence) for sequence in holders)
    if victim is None:
        return False
    served = [s for s in (state.batch.sequences[slot] for slot in growers) if s is not None]
    others = [s for s in served if s.id != victim.sequence]
    standing = state.waiting.place
    beneficiary = min(others, key=lambda s: (s.flow.counter, standing(s)), default=None)
    preempt(state, state.sequences[victim.sequence], PreemptReason.KV_GROWTH, beneficiary, now)
    return True


def _candidate(state: KernelState, sequence: Sequence) -> Candidate:
    ledger = state.ledger
    return Candidate(
        sequence=sequence.id,
        served=sequence.flow.counter,
        order=state.waiting.place(sequence),
        blocks_freed=sum(1 for block in sequence.blocks if ledger.references(block) == 1),
    )
