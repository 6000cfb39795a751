"""Waiters that enter the batch: picked by fairness, then by order within their flow."""

from itertools import islice

from engine.core.draft import DraftPlan, PrefillRow, join_of
from engine.core.memory import fits, promised_blocks, residence
from engine.core.plan import Transfer
from engine.core.rework import forgive
from engine.core.sequence import Sequence, State
from engine.core.slices import add_slice, charge
from engine.core.state import KernelState
from policies.chunking import chunk_tokens
from policies.fairness.tree import Flow
from telemetry.events import FlowStalled, SequenceAdmitted, Stall

LOOK_AHEAD = 8  # waiters of a flow tried when the first does not fit the free KV blocks


def admit_waiters(state: KernelState, draft: DraftPlan, now: int) -> None:
    """Fill free slots and what is left of the step's budget from the waiting flows."""
    if state.config.policy.batching == "static" and state.batch_is_old:
        return
    stalled: dict[Flow, tuple[Stall, int]] = {}
    _admit_in_turn(state, draft, stalled, now)
    _note_stalls(state, stalled, now)


def _admit_in_turn(
    state: KernelState, draft: DraftPlan, stalled: dict[Flow, tuple[Stall, int]], now: int
) -> None:
    passed: set[Flow] = set()
    promised = 0 if state.batch.full else promised_blocks(state)  # no matter then
    for head in state.entitled:
        obstructed = obstacle(state, draft, head) is not None
        if not obstructed and fits(state, head, promised, replaces=True):
            promised += _admit(state, draft, head, now)
    while True:
        flow = state.next_flow(now, passed | state.stand_back)
        if flow is None:
            return
        first, head = next(state.waiting.front(flow)), next_in(state, flow)
        cause = obstacle(state, draft, head)
        if cause is not None:
            stalled[flow] = (cause, head.id)
            return
        chosen = head
        if not fits(state, head, promised, replaces=head.pressing):
            stalled[flow] = (Stall.KV_BLOCKS, head.id)
            if first.bypassed >= state.config.kv_bypass_limit:
                return  # everyone waits until the blocks for this one are free
            smaller = _smaller_one(state, flow, promised)
            if smaller is None:
                passed.add(flow)
                continue
            chosen = smaller
        for passed_over in (first, *(next(state.waiting.front(other)) for other in passed)):
            if passed_over is not chosen:
                passed_over.bypassed += 1
        promised += _admit(state, draft, chosen, now)


def next_in(state: KernelState, flow: Flow) -> Sequence:
    """The waiter of `flow` to admit next.

    With prefix ordering that is the one with the longest cached prefix among the first few, unless
    the first has been passed too often for that.
    """
    first = next(state.waiting.front(flow))
    if state.config.policy.ordering != "prefix" or first.bypassed >= state.config.kv_bypass_limit:
        return first
    few = list(islice(state.waiting.front(flow), LOOK_AHEAD))
    return max(few, key=lambda s: len(state.ledger.match(s.hashes)))


def obstacle(state: KernelState, draft: DraftPlan, head: Sequence) -> Stall | None:
    """What, apart from KV blocks, keeps the next waiter out of this step."""
    if state.batch.full:
        return Stall.SLOTS
    if draft.budget < min(draft.least, len(head.tokens)):
        return Stall.STEP_BUDGET
    return None


def _smaller_one(state: KernelState, flow: Flow, promised: int) -> Sequence | None:
    """A waiter close behind the flow's first one that does fit the free blocks."""
    for sequence in islice(state.waiting.front(flow), 1, LOOK_AHEAD):
        if fits(state, sequence, promised):
            return sequence
    return None


def _admit(state: KernelState, draft: DraftPlan, sequence: Sequence, now: int) -> int:
    """Run `sequence` with its first slice; returns the blocks it will still need."""
    ledger = state.ledger
    resumed = sequence.state is not State.WAITING
    place = residence(state, sequence)
    total = len(sequence.tokens)
    waiters_behind = state.waiting.total.sequences > 1
    need = total - place.computed
    count = chunk_tokens(need, draft.budget, draft.least, waiters_behind)
    if not place.paused:
        ledger.share(place.blocks)
    missing = ledger.blocks_for(place.computed + count) - len(place.blocks)
    fresh = ledger.allocate(max(0, missing))
    _swap_in(state, draft, sequence, place.swapped, fresh)
    if resumed:
        forgive(state.tree, state.cost, sequence, place.computed)
    else:
        sequence.cached_tokens = place.computed
        _prepay(state, sequence, now)
        _charge_cached(state, draft, sequence)
    sealed = sequence.sealed if place.paused else len(place.blocks)
    slot = state.run(sequence, [*place.blocks, *fresh], place.computed, sealed, now)
    draft.joined.append(join_of(sequence, slot))
    state.emit(
        SequenceAdmitted(
            now=now,
            sequence=sequence.id,
            step=state.next_step,
            slot=slot,
            cached_tokens=place.computed,
            resumed=resumed,
            swapped_blocks=len(place.swapped),
        )
    )
    add_slice(state, draft, PrefillRow(sequence, place.computed, 0, need), count, now)
    return ledger.blocks_for(total) - len(sequence.blocks)


def _swap_in(
    state: KernelState,
    draft: DraftPlan,
    sequence: Sequence,
    swapped: list[int],
    fresh: list[int],
) -> None:
    """Bring a waiter's KV back from the host into the first of its `fresh` blocks.

    At the expense of whoever made it leave, who is the payer of its newest debt.
    """
    if swapped:
        debt = sequence.debts[0]
        draft.bills.move(debt.payer, debt.lineage, len(swapped))
    draft.transfers.extend(
        Transfer(device_block=device, host_block=host, to_host=False)
        for device, host in zip(fresh, swapped, strict=False)
    )
    state.host.give_back(sequence.host_blocks)
    sequence.host_blocks = []


def _prepay(state: KernelState, sequence: Sequence, now: int) -> None:
    """Charge what the fairness policy expects of the output, and tell it of the admission."""
    sequence.prepaid = state.rule.prepay(sequence.flow, sequence.max_tokens)
    cost = 0.0
    if sequence.prepaid:
        cost = state.cost_of_output(sequence, 0, sequence.prepaid)
        state.tree.charge(sequence.flow, cost)
    cost += state.cost.prompt(0, sequence.prompt_length)
    state.rule.admitted(state.tree, sequence.flow, cost, now)


def _charge_cached(state: KernelState, draft: DraftPlan, sequence: Sequence) -> None:
    """Prompt tokens found in the cache count for a share of what computing them would have."""
    share = state.config.policy.cached_prompt_cost
    if share and sequence.cached_tokens:
        cost = share * state.cost.prompt(0, sequence.cached_tokens)
        charge(state, draft, sequence.flow, cost)


def _note_stalls(state: KernelState, stalled: dict[Flow, tuple[Stall, int]], now: int) -> None:
    """Record what changed: flows whose turn it was and what kept their first waiter out.

    A flow that no longer stands in line first, or comes to wait and does not, waits for its turn.
    """
    turned = [flow for flow in state.stalls if flow not in stalled]
    for flow in turned:
        first = next(state.waiting.front(flow), None)
        if first is None:
            state.emit(FlowStalled(now, flow.path, None))
        else:
            state.emit(FlowStalled(now, flow.path, Stall.SHARE, first.id))
    for flow in state.came:
        first = next(state.waiting.front(flow), None)
        if first is not None and flow not in stalled and flow not in turned:
            state.emit(FlowStalled(now, flow.path, Stall.SHARE, first.id))
    state.came.clear()
    for flow, (cause, sequence) in stalled.items():
        if state.stalls.get(flow) != (cause, sequence):
            state.emit(FlowStalled(now, flow.path, cause, sequence))
    state.stalls = stalled
