"""The state of one kernel, and the few ways in which a sequence changes its place in it."""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from engine.core.batch import Batch
from engine.core.bills import Bills
from engine.core.blocks import BlockLedger, Hold
from engine.core.config import KernelConfig
from engine.core.host_pool import HostPool
from engine.core.outlook import Outlook
from engine.core.outputs import Finished, OutputBatch
from engine.core.plan import LongArray, StepPlan, Transfer
from engine.core.rework import Debt, Move, forgive
from engine.core.sequence import Group, Sequence, State
from engine.core.tombstones import Tombstones
from engine.core.waiting import WaitingRoom
from policies.cost import make_cost
from policies.estimates import Company, DrainRate, MoveStalls, Standstill, bounded
from policies.fairness.rules import Head, allowed_lead, make_rule, make_tree
from policies.fairness.tree import Flow, Lift
from policies.promises import PromiseLedger
from policies.step_time import StepTimeModel
from policies.trials import Trials
from telemetry.events import (
    Cause,
    Event,
    FlowLifted,
    Phase,
    SequenceEnded,
    SequencePreempted,
    Stall,
)
from tenants.choices import OnExpiry

SLACK = 1024  # deadlines of ended sequences kept before they are swept out


@dataclass(slots=True)
class Flight:
    """A launched step, the epochs of its rows' slots when it was planned, and who pays for it."""

    plan: StepPlan
    epochs: LongArray
    bills: Bills


class KernelState:
    """Everything the kernel knows. Written by the engine thread only."""

    def __init__(self, config: KernelConfig) -> None:
        self.config = config
        self.ledger = BlockLedger(config.num_blocks, config.block_size)
        self.batch = Batch(config.max_running, config.max_context)
        self.rule = make_rule(config.policy.fairness, config.policy.urgency_debt)
        self.tree = make_tree(config.policy.fairness, config.max_flows)
        self.allowed_lead = allowed_lead(config.policy.fairness)
        self.cost = make_cost(config.policy.cost)
        self.waiting = WaitingRoom(self.tree, config.policy.ordering)
        self.host = HostPool(config.host_blocks)
        self.transfers: list[Transfer] = []  # moves out, for the next plan
        self.moves: list[Move] = []  # for whose sake those are
        self.leaving: list[tuple[int, SequencePreempted]] = []  # their place in `events`
        self.sequences: dict[int, Sequence] = {}
        self.by_task: dict[tuple[str, str], dict[int, Sequence]] = {}
        self.tombstones = Tombstones(config.max_tombstones, config.tombstone_ttl)
        self.deadlines: list[tuple[int, int]] = []  # heap of (instant, sequence id)
        self.stalls: dict[Flow, tuple[Stall, int]] = {}  # cause and first waiter, but for SHARE
        self.came: dict[Flow, None] = {}  # flows that have come to wait since the last plan
        self.flights: deque[Flight] = deque()
        self.left: list[int] = []  # slots given up since the last plan
        self.drain_rate = DrainRate()
        self.company = Company()
        self.move_stalls = MoveStalls()
        self.standstill = Standstill()
        self.step_time = StepTimeModel()
        self.outlook = Outlook(config, self.step_time, self.batch)
        self.trials = Trials()
        self.promises = PromiseLedger(config.policy.admission.promises)
        self.pressing: list[tuple[int, int, bool]] = []  # heap; see `engine.core.urgency`
        self.draining = False
        self.batch_is_old = False  # static batching: the running batch was launched already
        self.paused: dict[int, Sequence] = {}
        self.stand_back: frozenset[Flow] = frozenset()  # too far ahead to be part of this step
        self.yielding: frozenset[Flow] = frozenset()  # too far ahead to go on with its prompts now
        self.entitled: list[Sequence] = []  # waiters for whom this step made room
        self._next_flow: tuple[tuple[int, int], Flow | None] = ((-1, -1), None)
        self.reserved: tuple[tuple[int, bytes], int] = ((0, b""), 0)  # see `engine.core.reserve`
        self.next_step = 1
        self.lag_tokens = 0  # tokens dropped by commands since the last commit
        self.events: list[Event] = []
        self.outputs = OutputBatch()

    @property
    def last_step(self) -> int:
        """The newest step planned."""
        return self.next_step - 1

    def emit(self, event: Event) -> None:
        """Record a decision."""
        self.events.append(event)

    def add(self, sequence: Sequence) -> None:
        """Take a new sequence in; it waits, but is not queued yet."""
        self.sequences[sequence.id] = sequence
        lineage = sequence.lineage
        self.by_task.setdefault((lineage.tenant, lineage.task), {})[sequence.id] = sequence
        self.tree.enter(sequence.flow)
        self.waiting.count(sequence)
        for instant in (sequence.deadline, sequence.first_token_deadline):
            if instant is not None:
                heappush(self.deadlines, (instant, sequence.id))
        if len(self.deadlines) > 2 * len(self.sequences) + SLACK:
            self.deadlines = [d for d in self.deadlines if d[1] in self.sequences]
            heapify(self.deadlines)

    def queue(self, sequence: Sequence, now: int) -> None:
        """Let a waiting sequence be picked."""
        if not sequence.flow.queued:
            self.came[sequence.flow] = None
        lifts: list[Lift] = self.waiting.queue(sequence, self.drain_rate.seconds_per_token * 1e9)
        for lift in lifts:
            self.emit(FlowLifted(now, lift.path, lift.before, lift.after))

    def next_flow(self, now: int, passed: Collection[Flow] = ()) -> Flow | None:
        """The flow to serve next, those in `passed` left out.

        Asked several times a step while nothing changes, so the last answer is kept.
        """
        if passed:
            return self.rule.pick(self.tree, passed, self.head, now)
        asked = (self.tree.version, now)
        if self._next_flow[0] != asked:
            found = self.rule.pick(self.tree, (), self.head, now)
            self._next_flow = (asked, found)
        return self._next_flow[1]

    def line(self, now: int) -> Iterator[Flow]:
        """The flows to serve, in order; see `Rule.line`."""
        return self.rule.line(self.tree, self.head, now)

    def head(self, flow: Flow) -> Head:
        """What fairness may know of the first waiter of `flow`."""
        first = next(self.waiting.front(flow))
        size = self.config.block_size
        return Head(
            first.arrived, first.urgency, lambda: len(self.ledger.match(first.hashes)) * size
        )

    def run(
        self, sequence: Sequence, blocks: list[int], computed: int, sealed: int, now: int
    ) -> int:
        """Move a waiting sequence into the batch; returns its slot.

        Of its `blocks` the first `sealed` are published, and they hold `computed` positions.
        """
        self.waiting.unqueue(sequence)
        self.waiting.uncount(sequence)
        sequence.move(State.RUNNING)
        self.tree.start(sequence.flow)
        self.paused.pop(sequence.id, None)
        sequence.blocks = blocks
        sequence.computed = computed
        sequence.sealed = sealed
        if sequence.admitted is None:
            sequence.admitted = now
        return self.batch.join(sequence, computed)

    def end(
        self,
        sequence: Sequence,
        cause: Cause,
        now: int,
        detail: str = "",
        keep: int | None = None,
    ) -> None:
        """End a live sequence: it owns nothing afterwards and emits its one terminal event.

        With `keep`, only that many output tokens count; those beyond it were computed in vain.
        """
        phase = sequence.phase
        if sequence.state is State.RUNNING:
            self.note_departure(sequence.flow, sequence.prompt_length, now)
        released = self._strip(sequence)
        sequence.move(State.ENDED)
        forgive(self.tree, self.cost, sequence, sequence.prompt_length + sequence.max_tokens)
        output_tokens = sequence.output_tokens
        sequence.flow.recent.append(output_tokens)
        self.outlook.observe_end(sequence.lineage.tenant, output_tokens, cause)
        if sequence.on_trial:
            self.trials.judge(now, sequence.kept_deadlines(cause, now))
        refund = sequence.prepaid - output_tokens
        if refund > 0:
            self.tree.charge(sequence.flow, -self.cost_of_output(sequence, output_tokens, refund))
        if keep is not None and keep < output_tokens:
            self.lag_tokens += output_tokens - keep
            output_tokens = keep
        self._forget(sequence)
        self.promote_fork(sequence.group, sequence, now)
        self._report_end(sequence, cause, phase, detail, output_tokens, released, now)

    def note_departure(self, flow: Flow, tokens: int, now: int) -> None:
        """Those who wait in `flow` have come a place nearer."""
        first = next(self.waiting.front(flow), None)
        if first is not None:
            usual = bounded(self.standstill.open(now), self.outlook.step_seconds)
            lost, slowness = self.standstill.by(now, usual), self.step_time.slowness
            for node in (*flow.upward(), self.tree.root):
                node.departures.observe(now, first.arrived, tokens, lost, slowness)

    def condemn(self, detail: str, now: int) -> None:
        """Emit the terminal event of every live sequence and change nothing else.

        For a kernel that met a fault of its own and is thrown away: whatever it holds is suspect.
        """
        for sequence in self.sequences.values():
            self._report_end(
                sequence,
                Cause.ENGINE_FAILED,
                sequence.phase,
                detail,
                sequence.output_tokens,
                len(sequence.blocks),
                now,
            )

    def cost_of_output(self, sequence: Sequence, before: int, tokens: int) -> float:
        """What `tokens` output tokens after the first `before` of `sequence` cost."""
        one = np.ones(1)
        prompt = one * sequence.prompt_length
        return float(self.cost.outputs(prompt, one * before, one * tokens)[0])

    def _strip(self, sequence: Sequence) -> int:
        """Take everything from a sequence that ends; returns the device blocks it held."""
        held = len(sequence.blocks)
        if sequence.state is State.RUNNING:
            self.leave_batch(sequence)
        else:
            self.waiting.unqueue(sequence)
            self.waiting.uncount(sequence)
        self.paused.pop(sequence.id, None)
        self.release_blocks(sequence)
        self.host.give_back(sequence.host_blocks)
        sequence.host_blocks = []
        return held

    def _report_end(
        self,
        sequence: Sequence,
        cause: Cause,
        phase: Phase,
        detail: str,
        output_tokens: int,
        released: int,
        now: int,
    ) -> None:
        processed = max(sequence.group.paid, sequence.cached_tokens)
        self.emit(
            SequenceEnded(
                now=now,
                sequence=sequence.id,
                lineage=sequence.lineage,
                flow=sequence.flow.path,
                cause=cause,
                phase=phase,
                detail=detail,
                prompt_tokens=sequence.prompt_length,
                cached_tokens=sequence.cached_tokens,
                output_tokens=output_tokens,
                recomputed_tokens=sequence.recomputed,
                blocks_released=released,
                arrived=sequence.arrived,
                admitted=sequence.admitted,
                first_token=sequence.first_token,
                processed_tokens=processed,
            )
        )
        finished = Finished(
            cause=cause,
            prompt_tokens=sequence.prompt_length,
            cached_tokens=sequence.cached_tokens,
            output_tokens=output_tokens,
            detail=detail,
            processed_tokens=processed,
        )
        self.outputs.ended.append((sequence.id, finished))

    def expire(self, now: int) -> None:
        """End every sequence whose deadline has come."""
        while self.deadlines and self.deadlines[0][0] <= now:
            instant, number = heappop(self.deadlines)
            sequence = self.sequences.get(number)
            if sequence is None:
                continue
            if instant == sequence.deadline:
                begun = sequence.first_token is not None
                partial = begun and sequence.on_expiry == OnExpiry.PARTIAL
                self.end(sequence, Cause.PARTIAL if partial else Cause.DEADLINE, now)
            elif sequence.first_token is None:
                self.end(sequence, Cause.FIRST_TOKEN_DEADLINE, now)

    def leave_batch(self, sequence: Sequence) -> None:
        """Give up a running sequence's slot; it keeps its blocks.

        Blocks that a step in flight still uses are fenced until that step has landed.
        """
        slot = sequence.slot
        if self.flights and (
            self.batch.scheduled[slot] != self.batch.computed[slot] or self.batch.pending[slot] > 0
        ):
            self.ledger.share(sequence.blocks)
            self.ledger.hold(sequence.blocks, self.last_step, Hold.FENCE)
        self.batch.leave(sequence)
        self.tree.stop(sequence.flow)
        self.left.append(slot)

    def release_blocks(self, sequence: Sequence) -> int:
        """Give up the device blocks of a sequence out of the batch; returns how many come free."""
        freed = sum(1 for block in sequence.blocks if self.ledger.references(block) == 1)
        self.ledger.release(sequence.blocks)
        sequence.blocks = []
        return freed

    def _forget(self, sequence: Sequence) -> None:
        del self.sequences[sequence.id]
        key = (sequence.lineage.tenant, sequence.lineage.task)
        siblings = self.by_task[key]
        del siblings[sequence.id]
        if not siblings:
            del self.by_task[key]
        self.tree.leave(sequence.flow)

    def promote_fork(self, group: Group, gone: Sequence, now: int) -> None:
        """When the choice that computes the shared prompt is gone, the next one takes over."""
        if gone in group.forks:
            group.forks.remove(gone)
        if group.leader is gone:
            group.leader = group.forks.pop(0) if group.forks else None
            if group.leader is not None:
                group.leader.debts = [
                    Debt(debt.end, debt.payer, debt.lineage) for debt in gone.debts
                ]
                self.queue(group.leader, now)
