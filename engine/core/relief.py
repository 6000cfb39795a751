"""Bounded lag at work: those too far ahead give way to flows that have fallen behind."""

from itertools import islice

import numpy as np

from engine.core.admission import next_in
from engine.core.memory import entry_blocks, fits, promised_blocks, shortage
from engine.core.preempt import computed_of, mode_for, pause, preempt
from engine.core.sequence import Sequence, State
from engine.core.state import KernelState
from policies.fairness.lag import (
    lag_of,
    lags,
    leaves,
    outpaces,
    standing,
    too_far_ahead,
    weight_beside,
)
from policies.fairness.tree import Flow
from telemetry.events import PreemptMode, PreemptReason

MOST_VICTIMS = 64  # of one step, beyond those that the first in line needs


def relieve_lag(state: KernelState, now: int) -> None:
    """Before a step: make room for the flows next in line while their lag exceeds the bound.

    Whoever is further ahead than that yields: its unfinished prompts take no budget. If there is no
    room for all that wait of a lagging flow even so, it stands back: nothing of it is computed.
    """
    state.stand_back = state.yielding = frozenset()
    state.entitled.clear()
    if state.allowed_lead == np.inf or not state.waiting.total.sequences:
        return
    if state.config.policy.batching == "static" and state.batch_is_old:
        return  # nobody may enter before the batch has ended
    poor = state.next_flow(now)
    ahead = [] if poor is None else too_far_ahead(poor, state.allowed_lead)
    if not ahead:
        return
    if state.batch.full and not any(node.running for node in ahead):
        state.stand_back = leaves(ahead)  # they have no slot that could be taken, nor shall get one
        return
    state.yielding = leaves(ahead)
    relief = _Relief(state, now)
    for poor in state.line(now):
        if not lags(poor, state.allowed_lead):
            return
        if poor in state.stand_back:
            continue  # too far ahead of somebody for whom there is no room
        if relief.is_ahead_of_those_left_out(poor):
            continue  # what its tenant is owed is not for it
        if not relief.make_room(poor):
            # whoever is too far ahead of those that come later is so of this one
            state.stand_back = state.stand_back or leaves(too_far_ahead(poor, state.allowed_lead))
        if relief.spent:
            return


def _prompt_tokens(state: KernelState) -> int:
    """What is left of the running prompts of those who do not yield."""
    left = state.batch.known + state.batch.pending - state.batch.scheduled
    slots = np.flatnonzero((state.batch.ids >= 0) & (left > 1))
    owners = ((int(slot), state.batch.sequences[slot]) for slot in slots)
    return sum(int(left[slot]) for slot, s in owners if s and s.flow not in state.yielding)


class _Relief:
    """The places made in one step, and who may have to give way for them."""

    def __init__(self, state: KernelState, now: int) -> None:
        self._state = state
        self._now = now
        batch, config = state.batch, state.config
        self._budget = config.max_step_tokens - batch.running - _prompt_tokens(state)
        # the step's own decodes may each need a block; what is freed must not go there
        self._spoken_for = promised_blocks(state) + batch.running // config.block_size
        self._placed = 0
        self._taken = 0
        self.spent = False  # nothing more can be done in this step
        self._left_out: dict[str, list[Flow]] = {}  # by tenant: those with waiters left in line
        self._held: dict[Flow, list[Sequence]] = {}
        for sequence in (*batch.live(), *state.paused.values()):
            self._held.setdefault(sequence.flow, []).append(sequence)
        self._rich = sorted(self._held, key=standing, reverse=True)

    def is_ahead_of_those_left_out(self, flow: Flow) -> bool:
        """Whether somebody of the same tenant could not have room for all that waits of it, and

        has been served less than `flow` by more than the bound. Then `flow` must not have any: it
        would keep it for as long as its tenant is not next in line.
        """
        others = self._left_out.get(flow.path[0], ())
        return any(lag_of(other, flow) > self._state.allowed_lead for other in others)

    def make_room(self, poor: Flow) -> bool:
        """As `_make_room`, noting who was left with waiters in line."""
        before = self._placed
        there_is = self._make_room(poor)
        if self._placed - before < poor.own:
            self._left_out.setdefault(poor.path[0], []).append(poor)
        return there_is

    def _make_room(self, poor: Flow) -> bool:
        """Take running work back until the first waiter of `poor` finds a place; and further ones

        of it, as many as the step can compute, as long as it still lags with their prompts and the
        victim's flow would still grow faster. Returns whether there is room for all of them, or
        making it is not worth it yet.
        """
        min_chunk, granted = self._state.config.min_chunk, 0.0
        for more, head in enumerate(self._line(poor)):
            if self._budget < min(min_chunk, len(head.tokens)):
                self.spent = True
                return False
            # The bills for victims close the gap, and shall not count; prompts let in already do.
            was = {node: node.counter + granted / node.weight for node in poor.upward()}
            if more and not any(self._is_rich(flow, poor, was) for flow in self._rich):
                return True
            first = True
            while (short := self._lacks(head)) is not None:
                self.spent = self._placed > 0 and self._taken >= MOST_VICTIMS
                victim = None if self.spent else self._victim(poor, was, short)
                if victim is None:
                    self.spent = True
                    return False
                if more and not outpaces(victim.flow, poor, more):
                    # others may have idle slots, but not memory that `poor` itself is short of
                    self.spent = short > 0
                    return False
                keeps_kv = not short and self._state.config.policy.pause
                if not keeps_kv and not self._is_worth_it(victim, poor, short):
                    return first
                self._take(victim, head, short)
                first = False
            self._state.entitled.append(head)
            self._placed += 1
            granted += self._state.cost.prompt(head.computed, len(head.tokens))
            self._budget -= len(head.tokens) - head.computed
            self._spoken_for += entry_blocks(self._state, head)
        return True

    def _line(self, poor: Flow) -> list[Sequence]:
        """The waiters of `poor` that might enter in one step, in order."""
        first = next_in(self._state, poor)
        few = islice(self._state.waiting.front(poor), self._state.config.max_running)
        return [first, *(s for s in few if s is not first)]

    def _lacks(self, head: Sequence) -> int | None:
        """Blocks that `head` is short of, 0 if it only lacks a slot, None if it can enter."""
        state = self._state
        if not fits(state, head, self._spoken_for, replaces=True):
            return max(1, shortage(state, head, self._spoken_for))
        free = state.config.max_running - state.batch.running
        return 0 if free <= self._placed else None

    def _victim(self, poor: Flow, was: dict[Flow, float], short: int) -> Sequence | None:
        """The cheapest work of the flow furthest ahead that holds anything; None if none does that

        was too far ahead of `poor`. Paused work counts where blocks are short: the least computed
        work that frees `short` blocks at once, else the most that comes free. Among equals the last
        in line.
        """
        for flow in self._rich:
            own = [s for s in self._held[flow] if self._may_go(s, short)]
            if own and self._is_rich(flow, poor, was):
                return min(own, key=lambda sequence: self._rank(sequence, short))
        return None

    def _may_go(self, sequence: Sequence, short: int) -> bool:
        """Paused work has only memory to give. Running work that has gained nothing since it

        entered stays: what is in flight would be thrown away, and with a step that costs more than
        the bound, flows would take each other's place for ever.
        """
        if sequence.state is not State.RUNNING:
            return short > 0
        return computed_of(self._state, sequence) > sequence.computed

    def _is_rich(self, flow: Flow, poor: Flow, was: dict[Flow, float]) -> bool:
        return lag_of(poor, flow, was) > self._state.allowed_lead

    def _is_worth_it(self, victim: Sequence, poor: Flow, short: int) -> bool:
        """Whether the bill, for `victim` and more like it while blocks are short, is at most half

        of the lag. If it turned the lag around, `poor` would have to give way next, and both would
        compute again and again.
        """
        computed = computed_of(self._state, victim)
        if mode_for(self._state, computed) is PreemptMode.SWAP:
            return True
        bill = self._state.cost.prompt(0, computed) / weight_beside(poor, victim.flow)
        bill *= max(1.0, short / max(1, self._frees(victim)))
        return 2 * bill <= lag_of(poor, victim.flow)

    def _frees(self, sequence: Sequence) -> int:
        ledger = self._state.ledger
        return sum(1 for block in sequence.blocks if ledger.references(block) == 1)

    def _rank(self, sequence: Sequence, short: int) -> tuple[bool, int, tuple[int, ...]]:
        state = self._state
        freed = self._frees(sequence)
        enough = freed >= short
        cost = computed_of(state, sequence)
        order = tuple(-part for part in state.waiting.place(sequence)[1:])
        return not enough, cost if enough else -freed, order

    def _take(self, victim: Sequence, head: Sequence, short: int) -> None:
        take = preempt if short or not self._state.config.policy.pause else pause
        take(self._state, victim, PreemptReason.LAG, head, self._now)
        self._taken += 1
        if victim.state is not State.PAUSED:
            self._held[victim.flow].remove(victim)
