"""One step is planned: expiry, decodes, running prompts, newcomers, leftovers."""

import numpy as np

from engine.core.admission import admit_waiters
from engine.core.draft import DraftPlan
from engine.core.growth import make_room_for_someone, plan_decodes
from engine.core.plan import StepPlan
from engine.core.preemption_cost import note_company, price_moves
from engine.core.relief import relieve_lag
from engine.core.slices import bill_slice, extend_prefills, plan_prefills
from engine.core.state import Flight, KernelState
from engine.core.step_work import keep_tpot
from engine.core.urgency import attend
from telemetry.events import StepPlanned


def plan(state: KernelState, now: int) -> StepPlan | None:
    """The next step, or None when nothing can be computed now."""
    state.expire(now)
    if len(state.flights) >= state.config.max_in_flight:
        return None
    attend(state, now)
    if not (state.sequences or state.stalls or state.leaving):
        return None  # nothing lives, and nothing is left to be said of what did
    relieve_lag(state, now)
    draft = _draft(state, now)
    while draft.empty and not state.flights and _someone_may_run(state, now):
        draft = _draft(state, now)
    if draft.empty:
        price_moves(state, None)
        return None
    return _launch(state, draft, now)


def _someone_may_run(state: KernelState, now: int) -> bool:
    """Nothing could be planned: let those step in who stood back, or else break a deadlock."""
    if state.stand_back or state.yielding:
        state.stand_back = state.yielding = frozenset()
        return True
    return make_room_for_someone(state, now)


def _draft(state: KernelState, now: int) -> DraftPlan:
    draft = DraftPlan(budget=state.config.max_step_tokens, least=state.config.min_chunk)
    state.batch_is_old = state.batch_is_old and state.batch.running > 0
    plan_decodes(state, draft, now)
    keep_tpot(state, draft)
    plan_prefills(state, draft, now)
    admit_waiters(state, draft, now)
    extend_prefills(state, draft, now)
    _bill_decodes(state, draft)
    return draft


def _bill_decodes(state: KernelState, draft: DraftPlan) -> None:
    """Decode rows cost when their token is committed, except those that end a prompt or rework."""
    batch, slots = state.batch, draft.decode_slots
    starts, paid = batch.scheduled[slots], batch.paid[slots]
    billed = (starts < np.maximum(paid, batch.prompt[slots])).nonzero()[0]
    for slot, start in zip(slots[billed].tolist(), starts[billed].tolist(), strict=True):
        bill_slice(state, draft, batch.at(slot), start, 1)
    batch.paid[slots] = np.maximum(paid, starts + 1)


def _launch(state: KernelState, draft: DraftPlan, now: int) -> StepPlan:
    batch = state.batch
    if draft.prefills:
        note_company(state, draft.prefills)
    step = draft.compose(state.next_step, batch, state.left, state.transfers)
    price_moves(state, step)
    for move in state.moves:
        draft.bills.move(*move)
    state.left.clear()
    state.transfers.clear()
    state.moves.clear()
    state.host.settle()
    state.batch_is_old = True
    state.next_step += 1
    slots = step.slots
    batch.scheduled[slots] = step.starts + step.counts
    batch.pending[slots] += step.samples
    if state.config.draft_tokens:
        batch.drafting[slots] += step.drafts
    state.standstill.launch(now)
    state.flights.append(Flight(step, batch.epoch[slots], draft.bills))
    ledger = state.ledger
    state.emit(
        StepPlanned(
            now=now,
            step=step.step,
            sequences=tuple(step.sequences.tolist()),
            starts=tuple(step.starts.tolist()),
            counts=tuple(step.counts.tolist()),
            running=batch.running,
            waiting=state.waiting.total.sequences,
            free_blocks=ledger.free,
            cached_blocks=ledger.cached,
            held_blocks=ledger.held,
        )
    )
    return step
