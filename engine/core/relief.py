"""Bounded lag at work: those too far ahead give way to a flow that has fallen behind."""

from itertools import islice

import numpy as np

from engine.core.admission import next_in
from engine.core.memory import entry_blocks, fits, promised_blocks, shortage
from engine.core.preempt import pause, preempt
from engine.core.sequence import Sequence, State
from engine.core.state import KernelState
from policies.fairness.lag import leaves, outpaces, standing, too_far_ahead
from policies.fairness.tree import Flow
from telemetry.events import PreemptReason

MOST_VICTIMS = 16  # of one step, beyond those that the first in line needs


def relieve_lag(state: KernelState, now: int) -> None:
    """Before a step: make room for the flow next in line while its lag exceeds the bound.

    Whoever is further ahead than that even so stands back: nothing of it is computed in this step.
    """
    state.stand_back = frozenset()
    if state.max_lag == np.inf or not state.waiting.total.sequences:
        return
    if state.config.policy.batching == "static" and state.batch_is_old:
        return  # nobody may enter before the batch has ended
    poor = state.next_flow(now)
    if poor is None or not too_far_ahead(poor, state.max_lag):
        return
    _make_room(state, poor, now)
    state.stand_back = leaves(too_far_ahead(poor, state.max_lag))


def _make_room(state: KernelState, poor: Flow, now: int) -> None:
    """Take running work back until the first waiter of `poor` finds a place; and further ones of

    it, as many as the step can compute, as long as the victim's flow would still grow faster.
    """
    config = state.config
    budget = config.max_step_tokens - state.batch.running
    # the step's own decodes may each need a block; what is freed must not go there
    spoken_for = promised_blocks(state) + state.batch.running // config.block_size
    taken = 0
    for placed, head in enumerate(_line(state, poor)):
        if budget < min(config.min_chunk, len(head.tokens)):
            return
        while (short := _lacks(state, head, spoken_for, placed)) is not None:
            victim = _victim(state, poor, short)
            if victim is None:
                return
            if placed and (taken >= MOST_VICTIMS or not outpaces(victim.flow, poor, placed)):
                return
            _take(state, victim, head, short, now)
            taken += 1
        budget -= len(head.tokens) - head.computed
        spoken_for += entry_blocks(state, head)


def _lacks(state: KernelState, head: Sequence, spoken_for: int, placed: int) -> int | None:
    """Blocks that `head` is short of, 0 if it only lacks a slot, None if it can enter."""
    if not fits(state, head, spoken_for):
        return max(1, shortage(state, head, spoken_for))
    return 0 if state.config.max_running - state.batch.running <= placed else None


def _line(state: KernelState, poor: Flow) -> list[Sequence]:
    """The waiters of `poor` that might enter in one step, in order."""
    first = next_in(state, poor)
    few = list(islice(state.waiting.front(poor), state.config.max_running))
    return [first, *(s for s in few if s is not first)]


def _victim(state: KernelState, poor: Flow, short: int) -> Sequence | None:
    """The cheapest work of the most served flow over the bound; None if nobody holds anything.

    Paused work counts where blocks are short: the least computed work that frees `short` blocks at
    once, else the most that comes free. Among equals the last in line.
    """
    over = leaves(too_far_ahead(poor, state.max_lag))
    able = [*state.batch.live(), *state.paused.values()] if short else state.batch.live()
    holders = [sequence for sequence in able if sequence.flow in over]
    if not holders:
        return None
    rich = max({s.flow for s in holders}, key=standing)

    def rank(sequence: Sequence) -> tuple[bool, int, tuple[int, ...]]:
        freed = sum(1 for b in sequence.blocks if state.ledger.references(b) == 1)
        enough = freed >= short
        running = sequence.state is State.RUNNING
        cost = int(state.batch.computed[sequence.slot]) if running else sequence.computed
        order = tuple(-part for part in state.waiting.place(sequence)[1:])
        return not enough, cost if enough else -freed, order

    return min((s for s in holders if s.flow is rich), key=rank)


def _take(state: KernelState, victim: Sequence, head: Sequence, short: int, now: int) -> None:
    if short or not state.config.policy.pause:
        preempt(state, victim, PreemptReason.LAG, head, now)
    else:
        pause(state, victim, PreemptReason.LAG, head, now)
