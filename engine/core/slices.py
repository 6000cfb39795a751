"""Prompt slices: running prefills, what a slice costs whom, and choices forked from its end."""

import numpy as np

from engine.core.draft import DraftPlan, ForkRow, PrefillRow, join_of
from engine.core.growth import ready_slots
from engine.core.rework import settle, shares
from engine.core.sequence import Sequence
from engine.core.state import KernelState
from policies.chunking import chunk_tokens
from policies.fairness.tree import Flow
from telemetry.events import SequenceForked


def plan_prefills(state: KernelState, draft: DraftPlan, now: int) -> None:
    """Give running sequences with several tokens to compute a slice each, by fairness."""
    batch = state.batch
    unfinished = batch.known + batch.pending - batch.scheduled > 1
    if not np.count_nonzero(unfinished):
        return
    slots = (unfinished & ready_slots(state)).nonzero()[0].tolist()
    behind = [s for s in map(batch.at, slots) if s.flow not in state.yielding]
    behind.sort(key=lambda s: (s.flow.counter, state.waiting.place(s)))
    waiters = state.waiting.total.sequences > 0
    for position, sequence in enumerate(behind, start=1):
        need = _remaining(state, sequence)
        others = waiters or position < len(behind)
        wanted = chunk_tokens(need, draft.budget, draft.least, others)
        row = PrefillRow(sequence, int(batch.scheduled[sequence.slot]), 0, need)
        count = _grow_for(state, draft, row, wanted)
        if count:
            add_slice(state, draft, row, count, now)


def extend_prefills(state: KernelState, draft: DraftPlan, now: int) -> None:
    """Hand the budget that nobody behind wanted back to prompts that were cut short."""
    for row in draft.prefills:
        more = min(row.need - row.count, draft.budget)
        more = _grow_for(state, draft, row, more)
        if more:
            _add_tokens(state, draft, row, more, now)


def add_slice(state: KernelState, draft: DraftPlan, row: PrefillRow, count: int, now: int) -> None:
    """Put `row` into the step with `count` tokens, whose blocks exist already."""
    draft.prefills.append(row)
    _add_tokens(state, draft, row, count, now)


def bill_slice(
    state: KernelState, draft: DraftPlan, sequence: Sequence, start: int, count: int
) -> None:
    """Charge positions [start, start + count) as soon as they are planned, so that the next pick

    already counts them. First-time prompt positions go to the sequence's own flow; positions that
    were computed before go to whoever caused the rework. Output is charged when it is committed.
    """
    batch, slot = state.batch, sequence.slot
    end, paid = start + count, int(batch.paid[slot])
    rework = max(0, min(end, paid) - start)
    fresh = max(0, min(end, sequence.prompt_length) - max(start, paid))
    batch.paid[slot] = max(paid, end)
    sequence.group.paid = max(sequence.group.paid, min(end, sequence.prompt_length))
    sequence.recomputed += rework
    cost = state.cost.prompt(max(start, paid), max(start, paid) + fresh)
    charge(state, draft, sequence.flow, cost, prompt=fresh)
    if rework:
        _bill_rework(state, draft, sequence, start, start + rework)


def _bill_rework(
    state: KernelState, draft: DraftPlan, sequence: Sequence, start: int, end: int
) -> None:
    for debt, first, last in shares(sequence, start, end):
        cost = state.cost.prompt(first, last)
        payer = sequence.flow if debt is None else debt.payer
        charge(state, draft, payer, cost, rework=last - first)
        because_of = sequence.lineage if debt is None else debt.lineage
        draft.bills.repeat(sequence.id, because_of, last - first)
        if debt is not None:
            settle(state.tree, debt, cost)


def charge(
    state: KernelState,
    draft: DraftPlan,
    flow: Flow,
    cost: float,
    *,
    prompt: int = 0,
    rework: int = 0,
) -> None:
    """Count `cost` against `flow` and put it, with its tokens, on its bill of this step."""
    state.tree.charge(flow, cost)
    draft.bills.charge(flow, cost, prompt=prompt, rework=rework)


def _remaining(state: KernelState, sequence: Sequence) -> int:
    batch, slot = state.batch, sequence.slot
    return int(batch.known[slot] + batch.pending[slot] - batch.scheduled[slot])


def _grow_for(state: KernelState, draft: DraftPlan, row: PrefillRow, wanted: int) -> int:
    """Allocate blocks for `wanted` more tokens of `row`, or for as many as there are blocks."""
    size = state.config.block_size
    owned = len(row.sequence.blocks)
    start = row.start + row.count
    most = (owned + state.ledger.available) * size - start
    count = min(wanted, most)
    if count <= 0:
        return 0
    missing = state.ledger.blocks_for(start + count) - owned
    if missing > 0:
        draft.grow(row.sequence, state.ledger.allocate(missing), state.batch)
    return count


def _add_tokens(
    state: KernelState, draft: DraftPlan, row: PrefillRow, count: int, now: int
) -> None:
    bill_slice(state, draft, row.sequence, row.start + row.count, count)
    row.count += count
    draft.budget -= count
    if row.samples:
        _attach_forks(state, draft, row, now)


def _attach_forks(state: KernelState, draft: DraftPlan, row: PrefillRow, now: int) -> None:
    """Start the other choices of a prompt that `row` finishes; those that find no room queue."""
    group = row.sequence.group
    if group.leader is not row.sequence:
        return
    forks, group.forks = group.forks, []
    for fork in forks:
        if not _fork(state, draft, row, fork, now):
            state.queue(fork, now)


def _fork(state: KernelState, draft: DraftPlan, row: PrefillRow, fork: Sequence, now: int) -> bool:
    parent, ledger = row.sequence, state.ledger
    full, partial = divmod(fork.prompt_length, state.config.block_size)
    own = 1 if partial else 0
    if state.batch.full or ledger.available < own:
        return False
    shared = parent.blocks[:full]
    ledger.share(shared)
    blocks = [*shared, *ledger.allocate(own)]
    if partial:
        draft.copies.append((parent.blocks[full], blocks[full]))
    fork.cached_tokens = parent.cached_tokens
    slot = state.run(fork, blocks, fork.prompt_length, full, now)
    draft.joined.append(join_of(fork, slot))
    draft.forks.append(ForkRow(fork, row))
    state.emit(
        SequenceForked(
            now=now,
            sequence=fork.id,
            step=state.next_step,
            slot=slot,
            parent=parent.id,
            shared_blocks=full,
        )
    )
    return True
