"""The state of one kernel, and the few ways in which a sequence changes its place in it."""

from collections import OrderedDict, deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from engine.core.batch import Batch
from engine.core.blocks import BlockLedger, Hold
from engine.core.config import KernelConfig
from engine.core.draft import Bill
from engine.core.outputs import Finished, OutputBatch
from engine.core.plan import LongArray, StepPlan
from engine.core.sequence import Group, Sequence, State
from engine.core.waiting import WaitingRoom
from policies.estimates import DrainRate
from policies.fairness import Flow, FlowTree, Lift
from telemetry.events import (
    Cause,
    Event,
    FlowLifted,
    PreemptReason,
    SequenceEnded,
    SequencePreempted,
    Stall,
)
from telemetry.lineage import Scope

SLACK = 1024  # deadlines of ended sequences kept before they are swept out


@dataclass(slots=True)
class Flight:
    """A launched step, the epochs of its rows' slots when it was planned, and who pays for it."""

    plan: StepPlan
    epochs: LongArray
    bills: dict[Flow, Bill]


class KernelState:
    """Everything the kernel knows. Written by the engine thread only."""

    def __init__(self, config: KernelConfig) -> None:
        self.config = config
        self.ledger = BlockLedger(config.num_blocks, config.block_size)
        self.batch = Batch(config.max_running, config.max_context)
        self.tree = FlowTree(config.max_flows)
        self.waiting = WaitingRoom(self.tree)
        self.sequences: dict[int, Sequence] = {}
        self.by_task: dict[tuple[str, str], dict[int, Sequence]] = {}
        self.tombstones: OrderedDict[Scope, int] = OrderedDict()  # scope -> expiry
        self.deadlines: list[tuple[int, int]] = []  # heap of (instant, sequence id)
        self.stalls: dict[Flow, Stall] = {}
        self.flights: deque[Flight] = deque()
        self.left: list[int] = []  # slots given up since the last plan
        self.drain_rate = DrainRate()
        self.draining = False
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
        self.note_lifts(self.waiting.queue(sequence), now)

    def note_lifts(self, lifts: list[Lift], now: int) -> None:
        """Record counters that were raised."""
        for lift in lifts:
            self.emit(FlowLifted(now, lift.path, lift.before, lift.after))

    def run(self, sequence: Sequence, blocks: list[int], computed: int, now: int) -> int:
        """Move a waiting sequence into the batch with `blocks`; returns its slot."""
        self.waiting.unqueue(sequence)
        self.waiting.uncount(sequence)
        sequence.move(State.RUNNING)
        sequence.blocks = blocks
        sequence.sealed = computed // self.config.block_size
        if sequence.admitted is None:
            sequence.admitted = now
        return self.batch.join(sequence, computed)

    def preempt(
        self, victim: Sequence, reason: PreemptReason, beneficiary: Sequence | None, now: int
    ) -> None:
        """Take a running sequence's slot and blocks back; it waits again, before fresh peers."""
        payer = victim.flow if beneficiary is None else beneficiary.flow
        lost = int(self.batch.computed[victim.slot])
        freed = self._give_up_place(victim)
        victim.move(State.PREEMPTED)
        victim.rework_payer = payer
        self.waiting.count(victim)
        self.emit(
            SequencePreempted(
                now=now,
                sequence=victim.id,
                reason=reason,
                beneficiary=None if beneficiary is None else beneficiary.id,
                billed=payer.path,
                tokens_lost=lost,
                blocks_freed=freed,
            )
        )
        self.queue(victim, now)
        self._promote_fork(victim.group, victim, now)

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
        released = 0
        if sequence.state is State.RUNNING:
            released = self._give_up_place(sequence)
        else:
            self.waiting.unqueue(sequence)
            self.waiting.uncount(sequence)
        sequence.move(State.ENDED)
        output_tokens = sequence.output_tokens
        if keep is not None and keep < output_tokens:
            self.lag_tokens += output_tokens - keep
            output_tokens = keep
        self._forget(sequence)
        self._promote_fork(sequence.group, sequence, now)
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
            )
        )
        finished = Finished(
            cause=cause,
            prompt_tokens=sequence.prompt_length,
            cached_tokens=sequence.cached_tokens,
            output_tokens=output_tokens,
            detail=detail,
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
                self.end(sequence, Cause.DEADLINE, now)
            elif sequence.first_token is None:
                self.end(sequence, Cause.FIRST_TOKEN_DEADLINE, now)

    def _give_up_place(self, sequence: Sequence) -> int:
        """Release slot and blocks; blocks that a step in flight uses stay fenced until it lands."""
        slot = sequence.slot
        in_flight = bool(self.flights) and (
            self.batch.scheduled[slot] != self.batch.computed[slot] or self.batch.pending[slot] > 0
        )
        freed = sum(1 for block in sequence.blocks if self.ledger.references(block) == 1)
        if in_flight:
            self.ledger.hold(sequence.blocks, self.last_step, Hold.FENCE)
        else:
            self.ledger.release(sequence.blocks)
        sequence.blocks = []
        self.batch.leave(sequence)
        self.left.append(slot)
        return freed

    def _forget(self, sequence: Sequence) -> None:
        del self.sequences[sequence.id]
        key = (sequence.lineage.tenant, sequence.lineage.task)
        siblings = self.by_task[key]
        del siblings[sequence.id]
        if not siblings:
            del self.by_task[key]
        self.tree.leave(sequence.flow)
        if not sequence.flow.queued:
            self.stalls.pop(sequence.flow, None)

    def _promote_fork(self, group: Group, gone: Sequence, now: int) -> None:
        """When the choice that computes the shared prompt is gone, the next one takes over."""
        if gone in group.forks:
            group.forks.remove(gone)
        if group.leader is gone:
            group.leader = group.forks.pop(0) if group.forks else None
            if group.leader is not None:
                self.queue(group.leader, now)
