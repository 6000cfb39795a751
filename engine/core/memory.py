"""What a waiter needs of the KV pool to enter the batch, and whether it is there."""

from dataclasses import dataclass

import numpy as np

from engine.core.reserve import fixed_reserve, leaves_growth
from engine.core.sequence import Sequence, State
from engine.core.state import KernelState


@dataclass(frozen=True, slots=True)
class Residence:
    """Where the KV of a waiter is. `blocks` are on the device already (its own when `paused`, else
    cached and shareable), `swapped` host blocks continue them; together they hold `computed`
    positions.
    """

    paused: bool
    blocks: list[int]
    swapped: list[int]
    computed: int


def residence(state: KernelState, sequence: Sequence) -> Residence:
    """Find what of a waiter's KV need not be computed."""
    if sequence.state is State.PAUSED:
        return Residence(True, sequence.blocks, [], sequence.computed)
    # the last token is always computed, for its logits
    usable = (len(sequence.tokens) - 1) // state.config.block_size
    cached = state.ledger.match(sequence.hashes[:usable]) if state.config.prefix_cache else []
    swapped = sequence.host_blocks[len(cached) :]
    computed = max(len(cached) * state.config.block_size, sequence.computed if swapped else 0)
    return Residence(False, cached, swapped, computed)


def fits(state: KernelState, sequence: Sequence, promised: int, *, replaces: bool = False) -> bool:
    """Whether `sequence` may enter, with `promised` blocks spoken for.

    One that `replaces` running work takes over what that would have grown by.
    """
    missing = shortage(state, sequence, promised)
    if missing > 0 or not (replaces or leaves_growth(state, fixed_reserve(state) - missing)):
        return False
    match state.config.policy.kv_admission:
        case "predicted_peak":
            return _peak_fits(state, sequence)
        case "reserve":
            return _reservation_fits(state, sequence)
    return True


def shortage(state: KernelState, sequence: Sequence, promised: int) -> int:
    """Blocks missing for `sequence` to enter with its known tokens and leave the fixed reserve."""
    wanted = entry_blocks(state, sequence) + promised + fixed_reserve(state)
    return wanted - state.ledger.available


def entry_blocks(state: KernelState, sequence: Sequence) -> int:
    """Available blocks that `sequence` takes when it enters with its known tokens."""
    ledger = state.ledger
    place = residence(state, sequence)
    taken = 0 if place.paused else ledger.count_cached(place.blocks)
    return ledger.blocks_for(len(sequence.tokens)) - len(place.blocks) + taken


def promised_blocks(state: KernelState) -> int:
    """Blocks that running prompts still need: they are spoken for, though not allocated."""
    batch = state.batch
    running = batch.ids >= 0
    total = -(-batch.known[running] // state.config.block_size)
    return int(np.maximum(total - batch.blocks[running], 0).sum())


def _peak_fits(state: KernelState, sequence: Sequence) -> bool:
    """The check of the VTC artifact, which takes declared lengths for true.

    Sorted by what is left to generate, longest first, memory peaks when the i-th ends: all up to it
    then hold what they have and as much again as the i-th still has to go. The artifact leaves at
    least a token free, which a request as large as the pool never does: alone it is let in.
    """
    batch, policy = state.batch, state.config.policy
    running = batch.ids >= 0
    if not running.any():
        return True
    used = np.append(batch.known[running], len(sequence.tokens) + 1)
    left = np.append(
        batch.limit[running] - batch.known[running],
        sequence.prompt_length + sequence.max_tokens - len(sequence.tokens) - 1,
    )
    order = np.argsort(-left, kind="stable")
    count = np.arange(1, len(order) + 1)
    peak = int((np.cumsum(used[order]) + count * left[order]).max())
    clients = {sequence.flow.index, *batch.flow[running].tolist()}
    room = state.config.num_blocks * state.config.block_size
    return peak < room - policy.client_overhead_tokens * len(clients)


def _reservation_fits(state: KernelState, sequence: Sequence) -> bool:
    batch, ledger = state.batch, state.ledger
    running = batch.ids >= 0
    held = int((-(-batch.limit[running] // state.config.block_size)).sum())
    own = ledger.blocks_for(sequence.prompt_length + sequence.max_tokens)
    return held + own <= state.config.num_blocks
