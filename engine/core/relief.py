"""Bounded lag at work: running sequences give way to a flow that has fallen too far behind."""

import numpy as np

from engine.core.admission import next_in
from engine.core.memory import fits, promised_blocks, shortage
from engine.core.preempt import pause, preempt
from engine.core.sequence import Sequence
from engine.core.state import KernelState
from policies.fairness.lag import most_served_over
from policies.fairness.tree import Flow
from telemetry.events import PreemptReason

MOST_VICTIMS = 16  # of one step


def relieve_lag(state: KernelState, now: int) -> None:
    """Before a step: make room for the flow next in line while its lag exceeds the bound.

    The step's own decodes may each need a block; what is freed for the newcomer must not go there.
    """
    if state.max_lag == np.inf:
        return
    for _ in range(MOST_VICTIMS):
        if not state.waiting.total.sequences or state.batch.running < 2:
            return
        poor = state.next_flow(now)
        if poor is None:
            return
        head = next_in(state, poor)
        spoken_for = promised_blocks(state) + state.batch.running // state.config.block_size
        room = fits(state, head, spoken_for)
        if room and not state.batch.full:
            return
        rich = most_served_over(poor, state.max_lag)
        short = 0 if room else max(1, shortage(state, head, spoken_for))
        if rich is None or not _give_way(state, rich, head, short, now):
            return


def _give_way(state: KernelState, rich: Flow, head: Sequence, short: int, now: int) -> bool:
    """Take one running sequence of `rich` back for `head`; False if it has none."""
    running = [s for s in state.batch.live() if s.flow is rich]
    if not running:
        return False
    victim = _cheapest(state, running, short)
    if short or not state.config.policy.pause:
        preempt(state, victim, PreemptReason.LAG, head, now)
    else:
        pause(state, victim, PreemptReason.LAG, head, now)
    return True


def _cheapest(state: KernelState, running: list[Sequence], short: int) -> Sequence:
    """The least computed work that frees `short` blocks at once, else the most that comes free.

    Among equals the last in line.
    """

    def rank(sequence: Sequence) -> tuple[bool, int, tuple[int, ...]]:
        freed = sum(1 for b in sequence.blocks if state.ledger.references(b) == 1)
        enough = freed >= short
        cost = int(state.batch.computed[sequence.slot])
        order = tuple(-part for part in state.waiting.place(sequence)[1:])
        return not enough, cost if enough else -freed, order

    return min(running, key=rank)
