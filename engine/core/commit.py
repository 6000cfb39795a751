"""A step's result is committed: tokens kept, sequences ended, service charged, blocks sealed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.core.hashing import next_hash
from engine.core.plan import BoolArray, IntArray, LongArray, StepPlan, StepResult
from engine.core.sequence import Sequence
from engine.core.state import Flight, KernelState
from engine.core.step_work import believed, learn
from telemetry.events import Cause, SequenceStarted, StepCommitted

Index = npt.NDArray[np.intp]
Rows = BoolArray | slice
ALL = slice(None)  # much quicker than a mask that is true everywhere


@dataclass(slots=True)
class _Drawn:
    """The step's tokens, one entry each: its row, its slot, its place among its row's tokens, its

    id, and its position in its sequence.
    """

    rows: Index
    slots: LongArray
    places: IntArray
    tokens: IntArray
    positions: IntArray


def commit(state: KernelState, plan: StepPlan, result: StepResult, now: int) -> None:
    """Take in the result of the oldest step in flight."""
    flight = _land(state, plan, result)
    batch = state.batch
    passed = state.standstill.open(now)
    state.standstill.commit(now, believed(state, plan, result, passed))
    valid = batch.epoch[plan.slots] == flight.epochs
    drawn = _drawn(state, plan, result)
    kept, stopped, full = _keep(state, plan, valid, drawn)
    lag, state.lag_tokens = state.lag_tokens, 0
    if np.count_nonzero(valid) == len(valid):
        _advance(state, plan, ALL, kept)
    else:
        lag += int(plan.counts[~valid].sum())
        _advance(state, plan, valid, kept)
    _store(state, plan, result, drawn, kept)
    _bill_output(state, flight, plan, kept)
    _seal(state, plan, valid)
    _note_first_tokens(state, plan, kept, now)
    _finish(state, plan, result, valid, stopped, full, now)
    state.ledger.retire(plan.step)
    _report(state, flight, result, kept, lag, now)
    seconds, positions = believed(state, plan, result, result.duration / 1e9), plan.tokens
    state.drain_rate.observe(positions, seconds)
    state.cost.observe(seconds, positions)
    learn(state, plan, result, now)
    state.outlook.observe_step(plan, seconds, state.waiting.total.sequences > 0)
    if not batch.running:
        state.standstill.rest()


def _land(state: KernelState, plan: StepPlan, result: StepResult) -> Flight:
    if not state.flights or state.flights[0].plan.step != plan.step:
        raise ValueError(f"step {plan.step} is not the oldest in flight")
    if result.step != plan.step or len(result.token_counts) != len(plan.slots):
        raise ValueError(f"result of step {result.step} does not belong to step {plan.step}")
    if result.stall and not plan.transfers:
        raise ValueError(f"step {plan.step} moves no KV and was held up by {result.stall} ns")
    return state.flights.popleft()


def _drawn(state: KernelState, plan: StepPlan, result: StepResult) -> _Drawn:
    counts, known = result.token_counts, state.batch.known
    if np.maximum.reduce(counts) <= 1:  # nothing was drafted
        rows = counts.nonzero()[0]
        slots = plan.slots[rows]
        return _Drawn(rows, slots, np.zeros(len(rows), np.int32), result.tokens, known[slots])
    rows = np.repeat(np.arange(len(counts)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    places = (np.arange(len(rows)) - first).astype(np.int32)
    slots = plan.slots[rows]
    return _Drawn(rows, slots, places, result.tokens, known[slots] + places)


def _keep(
    state: KernelState, plan: StepPlan, valid: BoolArray, drawn: _Drawn
) -> tuple[IntArray, BoolArray, BoolArray]:
    """How many drawn tokens each row keeps; which rows end on a stop token, which at their cap."""
    batch, rows, slots = state.batch, drawn.rows, drawn.slots
    left = batch.limit[slots] - drawn.positions
    usable = valid[rows] & (left > 0)
    stopped, full = np.zeros((2, len(plan.slots)), np.bool_)
    stops = batch.stops.take(slots, axis=0) == drawn.tokens[:, None]
    if np.count_nonzero(stops):
        stop = stops.any(axis=1) & usable & (drawn.positions >= batch.min_length[slots])
        stopped[rows[stop]] = True
        first = np.full(len(plan.slots), np.iinfo(np.int32).max, np.int32)
        np.minimum.at(first, rows[stop], drawn.places[stop])
        usable &= drawn.places <= first[rows]
    last = usable & (left == 1)
    if np.count_nonzero(last):
        full[rows[last]] = True
    kept = np.bincount(rows[usable], minlength=len(plan.slots)).astype(np.int32)
    return kept, stopped, full


def _advance(state: KernelState, plan: StepPlan, valid: Rows, kept: IntArray) -> None:
    """Move the counters of rows that still hold their place; rejected drafts roll back."""
    batch = state.batch
    slots = plan.slots[valid]
    batch.computed[slots] = plan.starts[valid] + plan.counts[valid]
    batch.pending[slots] -= plan.samples[valid]
    drafts = plan.drafts[valid]
    if np.count_nonzero(drafts):
        drafted = drafts > 0
        slots = slots[drafted]
        batch.computed[slots] -= drafts[drafted] - (kept[valid][drafted] - 1)
        batch.scheduled[slots] = batch.computed[slots]
        batch.drafting[slots] -= drafts[drafted]


def _store(
    state: KernelState, plan: StepPlan, result: StepResult, drawn: _Drawn, kept: IntArray
) -> None:
    """Write kept tokens into the token rows and into the output batch."""
    batch = state.batch
    rows, places, tokens = drawn.rows, drawn.places, drawn.tokens
    slots, positions = drawn.slots, drawn.positions
    keep = places < kept[rows]
    if np.count_nonzero(keep) < len(keep):
        rows, places, tokens = rows[keep], places[keep], tokens[keep]
        slots, positions = slots[keep], positions[keep]
    if not len(rows):
        return
    batch.keep(slots, positions, tokens)
    batch.known[plan.slots] += kept
    outputs = state.outputs
    base = len(outputs.sequences)
    outputs.sequences.extend(plan.sequences[rows].tolist())
    outputs.tokens.extend(tokens.tolist())
    if result.logprobs:
        pairs = zip(rows.tolist(), places.tolist(), strict=True)
        for offset, (row, at) in enumerate(pairs):
            if row in result.logprobs:
                outputs.logprobs[base + offset] = result.logprobs[row][at]


def _bill_output(state: KernelState, flight: Flight, plan: StepPlan, kept: IntArray) -> None:
    rows = kept.nonzero()[0]
    batch, slots = state.batch, plan.slots[rows]
    tokens, prompt = kept[rows], batch.prompt[slots]
    output = batch.known[slots] - prompt  # `tokens` included
    payable = tokens
    if np.count_nonzero(batch.prepaid):
        payable = np.minimum(np.maximum(output - batch.prepaid[slots], 0), tokens)
    costs = state.cost.outputs(prompt, output - payable, payable)
    flows = batch.flow[slots]
    tokens_by_flow = np.bincount(flows, weights=tokens)
    cost_by_flow = np.bincount(flows, weights=costs)
    served = tokens_by_flow.nonzero()[0]
    by_index = state.tree.by_index
    receivers = [by_index[index] for index in served.tolist()]
    charges = cost_by_flow[served].tolist()
    state.tree.charge_all(receivers, charges)
    flight.bills.charge_output(receivers, tokens_by_flow[served].astype(int).tolist(), charges)


def _seal(state: KernelState, plan: StepPlan, valid: BoolArray) -> None:
    """Publish blocks that became full, under the hash of all that leads up to them."""
    if not state.config.prefix_cache:
        return
    size = state.config.block_size
    full = state.batch.computed[plan.slots] // size
    crossed = valid & (full > plan.starts // size)
    for row in crossed.nonzero()[0].tolist():
        sequence = _at(state, plan, row)
        while sequence.sealed < int(full[row]):
            _seal_next(state, sequence)


def _seal_next(state: KernelState, sequence: Sequence) -> None:
    index, size = sequence.sealed, state.config.block_size
    if index == len(sequence.hashes):
        parent = sequence.hashes[-1] if sequence.hashes else sequence.salt
        tokens = state.batch.tokens[sequence.slot, index * size : (index + 1) * size]
        sequence.hashes.append(next_hash(parent, tokens))
    state.ledger.seal(sequence.blocks[index], sequence.hashes[index])
    sequence.sealed += 1


def _note_first_tokens(state: KernelState, plan: StepPlan, kept: IntArray, now: int) -> None:
    started = state.batch.started
    silent = ~started[plan.slots]
    if not np.count_nonzero(silent):
        return
    for row in (silent & (kept > 0)).nonzero()[0].tolist():
        started[plan.slots[row]] = True
        sequence = _at(state, plan, row)
        sequence.first_token = now
        state.emit(SequenceStarted(now, sequence.id, sequence.arrived))


def _finish(
    state: KernelState,
    plan: StepPlan,
    result: StepResult,
    valid: BoolArray,
    stopped: BoolArray,
    full: BoolArray,
    now: int,
) -> None:
    """End rows that failed, drew a stop token or reached their cap."""
    for row, failure in sorted(result.failures.items()):
        if valid[row]:
            cause = Cause.NUMERICAL if failure.numerical else Cause.CONSTRAINT
            sequence = _at(state, plan, row)
            if failure.numerical:  # whatever began like it would fail like it
                state.ledger.unpublish(sequence.blocks)
            state.end(sequence, cause, now, failure.detail)
    for row in (stopped | full).nonzero()[0].tolist():
        if row not in result.failures:
            cause = Cause.STOP if stopped[row] else Cause.LENGTH
            state.end(_at(state, plan, row), cause, now)


def _at(state: KernelState, plan: StepPlan, row: int) -> Sequence:
    sequence = state.batch.sequences[int(plan.slots[row])]
    assert sequence is not None  # asked only for rows that still hold their slot
    return sequence


def _report(
    state: KernelState, flight: Flight, result: StepResult, kept: IntArray, lag: int, now: int
) -> None:
    plan, bills = flight.plan, flight.bills
    rows = kept.nonzero()[0]
    state.emit(
        StepCommitted(
            now=now,
            step=plan.step,
            duration=result.duration,
            sequences=tuple(plan.sequences[rows].tolist()),
            output_tokens=tuple(kept[rows].tolist()),
            prompt_tokens=bills.prompt_tokens,
            recomputed_tokens=bills.rework_tokens,
            lag_tokens=lag,
            stall=result.stall,
            slowness=state.step_time.slowness,
        )
    )
    if bills:
        state.emit(bills.event(plan.step, now, result.stall))
