"""The blocks that newcomers must leave free, so that what runs can grow until enough of it ends."""

import numpy as np

from engine.core.outlook import LEAST_ENDS
from engine.core.preempt import mode_for
from engine.core.state import KernelState
from policies.kv_growth import expected_growth
from telemetry.events import PreemptMode


def fixed_reserve(state: KernelState) -> int:
    """A share of the pool while anything runs; other ways of admission count for themselves."""
    config = state.config
    if not state.batch.running or config.policy.kv_admission != "grow":
        return 0
    return int(config.kv_reserve * config.num_blocks)


def reserved_blocks(state: KernelState) -> int:
    """That share, or the growth expected of what runs if that is more.

    Nothing while nothing runs, so that a lone request can always enter. Asked for each waiter that
    is tried, so the answer is kept until another step or another set of running sequences.
    """
    if not state.batch.running or state.config.policy.kv_admission != "grow":
        return 0
    asked = (state.next_step, state.batch.ids.tobytes())
    if state.reserved[0] != asked:
        state.reserved = (asked, max(fixed_reserve(state), _growth_blocks(state)))
    return state.reserved[1]


def leaves_growth(state: KernelState, spare: int) -> bool:
    """Whether `spare` free blocks are no fewer than `reserved_blocks`, if not than a fixed share.

    Where they would hold everything that runs up to its cap, the growth expected is not worked out.
    """
    batch = state.batch
    if not batch.running or state.config.policy.kv_admission != "grow":
        return True
    running = batch.ids >= 0
    left = int(np.add.reduce(batch.limit[running] - batch.known[running]))
    return spare >= _blocks_beside(state, left) or spare >= reserved_blocks(state)


def _growth_blocks(state: KernelState) -> int:
    """The growth expected of what runs and of one more like it.

    Expected in the mean where KV that has to give way is moved; where it would be computed again,
    so many standard deviations more.
    """
    batch, lengths = state.batch, state.outlook.lengths
    if lengths.ends < LEAST_ENDS:
        return 0  # nothing is known of them
    running = batch.ids >= 0
    flows, owner = np.unique(batch.flow[running], return_inverse=True)
    onward = np.stack([lengths.of(_tenant(state, index)).onward for index in flows.tolist()])
    used, prompt = batch.known[running], batch.prompt[running]
    moves = mode_for(state, int(used.mean())) is PreemptMode.SWAP
    tokens = expected_growth(
        used=used,
        generated=used - prompt,
        left=batch.limit[running] - used,
        onward=onward,
        owner=owner.astype(np.int32),
        deviations=0.0 if moves else state.config.kv_growth_deviations,
    )
    return _blocks_beside(state, tokens)


def _blocks_beside(state: KernelState, tokens: float) -> int:
    """Blocks for so many tokens of what runs, and for those of one more like it."""
    return state.ledger.blocks_for(int(tokens * (1 + 1 / state.batch.running)))


def _tenant(state: KernelState, index: int) -> str:
    return state.tree.by_index[index].path[0]
