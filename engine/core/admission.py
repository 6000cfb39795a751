"""Waiters that enter the batch: picked by fairness, then by order within their flow."""

from itertools import islice

import numpy as np

from engine.core.draft import DraftPlan, PrefillRow, join_of
from engine.core.sequence import Sequence, State
from engine.core.slices import add_slice
from engine.core.state import KernelState
from policies.chunking import chunk_tokens
from policies.fairness import Flow
from telemetry.events import FlowStalled, SequenceAdmitted, Stall

LOOK_AHEAD = 8  # waiters of a flow tried when the first does not fit the free KV blocks


def admit_waiters(state: KernelState, draft: DraftPlan, now: int) -> None:
    """Fill free slots and what is left of the step's budget from the waiting flows."""
    passed: set[Flow] = set()
    promised = _promised_blocks(state)
    while True:
        flow = state.tree.pick(lambda candidate: candidate not in passed)
        if flow is None:
            return
        head = next(state.waiting.front(flow))
        cause = _obstacle(state, draft, head)
        if cause is not None:
            _stall(state, flow, cause, now)
            return
        chosen = head
        if not _fits(state, head, promised):
            _stall(state, flow, Stall.KV_BLOCKS, now)
            if head.bypassed >= state.config.kv_bypass_limit:
                return  # everyone waits until the blocks for this one are free
            smaller = _smaller_one(state, flow, promised)
            if smaller is None:
                passed.add(flow)
                continue
            chosen = smaller
            head.bypassed += 1
        for other in passed:
            next(state.waiting.front(other)).bypassed += 1
        promised += _admit(state, draft, chosen, now)
        if chosen is head:
            _stall(state, flow, None, now)


def _obstacle(state: KernelState, draft: DraftPlan, head: Sequence) -> Stall | None:
    """What, apart from KV blocks, keeps the next waiter out of this step."""
    if state.batch.full:
        return Stall.SLOTS
    if draft.budget < min(state.config.min_chunk, len(head.tokens)):
        return Stall.STEP_BUDGET
    return None


def _promised_blocks(state: KernelState) -> int:
    """Blocks that running prompts still need: they are spoken for, though not allocated."""
    batch = state.batch
    running = batch.ids >= 0
    total = -(-batch.known[running] // state.config.block_size)
    return int(np.maximum(total - batch.blocks[running], 0).sum())


def _smaller_one(state: KernelState, flow: Flow, promised: int) -> Sequence | None:
    """A waiter close behind the flow's first one that does fit the free blocks."""
    for sequence in islice(state.waiting.front(flow), 1, LOOK_AHEAD):
        if _fits(state, sequence, promised):
            return sequence
    return None


def _prefix(state: KernelState, sequence: Sequence) -> list[int]:
    """Cached blocks of its prefix; the last token is always computed, for its logits."""
    usable = (len(sequence.tokens) - 1) // state.config.block_size
    return state.ledger.match(sequence.hashes[:usable])


def _fits(state: KernelState, sequence: Sequence, promised: int) -> bool:
    ledger, config = state.ledger, state.config
    matched = _prefix(state, sequence)
    need = ledger.blocks_for(len(sequence.tokens)) - len(matched) + ledger.count_cached(matched)
    reserve = int(config.kv_reserve * config.num_blocks) if state.batch.running else 0
    return need + promised + reserve <= ledger.available


def _admit(state: KernelState, draft: DraftPlan, sequence: Sequence, now: int) -> int:
    """Run `sequence` with its first slice; returns the blocks it will still need."""
    ledger = state.ledger
    resumed = sequence.state is State.PREEMPTED
    matched = _prefix(state, sequence)
    cached = len(matched) * state.config.block_size
    total = len(sequence.tokens)
    waiters_behind = state.waiting.total.sequences > 1
    count = chunk_tokens(total - cached, draft.budget, state.config.min_chunk, waiters_behind)
    ledger.share(matched)
    blocks = [*matched, *ledger.allocate(ledger.blocks_for(cached + count) - len(matched))]
    if not resumed:
        sequence.cached_tokens = cached
    slot = state.run(sequence, blocks, cached, now)
    draft.joined.append(join_of(sequence, slot))
    state.emit(
        SequenceAdmitted(
            now=now,
            sequence=sequence.id,
            step=state.next_step,
            slot=slot,
            cached_tokens=cached,
            resumed=resumed,
        )
    )
    add_slice(state, draft, PrefillRow(sequence, cached, 0, total - cached), count, now)
    return ledger.blocks_for(total) - len(blocks)


def _stall(state: KernelState, flow: Flow, cause: Stall | None, now: int) -> None:
    if state.stalls.get(flow) is cause:
        return
    if cause is None:
        del state.stalls[flow]
    else:
        state.stalls[flow] = cause
    state.emit(FlowStalled(now, flow.path, cause))
