"""The kernel's face: commands in, plans out, results in, effects out. No I/O, no clock, no torch.

`apply`, `plan` and `commit` decide at once and record what the world outside must do; the loop
collects it with `take_outputs` and `take_events`. One thread calls all of them.
"""

from engine.core import commit as committing
from engine.core import intake, planner
from engine.core.blocks import Hold
from engine.core.caps import is_there
from engine.core.commands import Command, Submit
from engine.core.config import KernelConfig
from engine.core.outputs import OutputBatch
from engine.core.plan import StepPlan, StepResult
from engine.core.preempt import preempt
from engine.core.preemption_cost import price_moves
from engine.core.pressure import Inquiry, Pressure
from engine.core.pressure import pressure as asked_pressure
from engine.core.sequence import State
from engine.core.state import KernelState
from engine.core.waiting import Backlog
from telemetry.events import Event, PreemptReason


class Scheduler:
    """Decides, for one engine, who computes what in each step."""

    def __init__(self, config: KernelConfig) -> None:
        self.config = config
        self._state = KernelState(config)

    def __repr__(self) -> str:
        ledger = self._state.ledger
        return (
            f"<Scheduler {self.running} running, {self.waiting} waiting | "
            f"{ledger.free} free + {ledger.cached} cached of {ledger.num_blocks} blocks>"
        )

    def apply(self, command: Command, now: int) -> None:
        """Carry out a command; it takes effect before the next step is planned."""
        intake.apply(self._state, command, now)

    def plan(self, now: int) -> StepPlan | None:
        """Plan the next step; None if there is nothing to compute or enough is in flight."""
        return planner.plan(self._state, now)

    def commit(self, plan: StepPlan, result: StepResult, now: int) -> None:
        """Take in the result of the oldest step in flight."""
        committing.commit(self._state, plan, result, now)

    def has_place(self, submit: Submit, since: int) -> bool:
        """Whether a caller refused at `since` (ns) would find a place in the queues now, those who

        came into line later standing behind it.
        """
        return is_there(self._state, submit, since)

    def pressure(self, inquiry: Inquiry, now: int) -> Pressure:
        """How a tenant stands. Nothing changes by asking."""
        return asked_pressure(self._state, inquiry, now)

    def preempt(self, sequence: int, now: int) -> None:
        """Fault injection: take the place of a running sequence; others are left alone."""
        found = self._state.sequences.get(sequence)
        if found is not None and found.slot >= 0:
            preempt(self._state, found, PreemptReason.FORCED, None, now)
            price_moves(self._state, None)  # no plan will, before its event is taken

    def take_outputs(self) -> OutputBatch:
        """What callers are to be told since the last call."""
        outputs, self._state.outputs = self._state.outputs, OutputBatch()
        return outputs

    def take_events(self) -> list[Event]:
        """What was decided since the last call."""
        events, self._state.events = self._state.events, []
        return events

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return self._state.batch.running

    @property
    def waiting(self) -> int:
        """Sequences that wait for a place in the batch."""
        return self._state.waiting.total.sequences

    @property
    def in_flight(self) -> int:
        """Steps launched and not committed."""
        return len(self._state.flights)

    @property
    def backlog(self) -> Backlog:
        """What waits, of all tenants."""
        return self._state.waiting.total

    @property
    def free_blocks(self) -> int:
        """KV blocks without content of value."""
        return self._state.ledger.free

    @property
    def cached_blocks(self) -> int:
        """KV blocks whose content can be found again."""
        return self._state.ledger.cached

    def live(self) -> list[int]:
        """The ids of all sequences that have not ended."""
        return list(self._state.sequences)

    def condemn(self, reason: str, now: int) -> None:
        """Report every live sequence as failed: this kernel is thrown away after a fault."""
        self._state.condemn(reason, now)

    def next_wakeup(self, now: int) -> int | None:
        """When time alone may change something: a deadline, or a policy's own clockwork.

        Monotonic nanoseconds; None if only commands can.
        """
        state = self._state
        moments = [instant for instant, _ in state.deadlines[:1]]
        change = state.rule.next_change(state.tree, now)
        return min([*moments, change] if change is not None else moments, default=None)

    def verify(self) -> None:
        """Check the kernel's laws; raises ValueError naming the one that is broken. Slow."""
        state = self._state
        running = state.batch.live()
        owners = [*running, *state.paused.values()]
        owning = set(owners)
        state.ledger.verify(block for sequence in owners for block in sequence.blocks)
        if any(s.blocks for s in state.sequences.values() if s not in owning):
            raise ValueError("a sequence neither running nor paused owns blocks")
        if any(s.state is not State.PAUSED for s in state.paused.values()):
            raise ValueError("a sequence counts as paused and is not")
        if sum(len(s.host_blocks) for s in state.sequences.values()) != state.host.used:
            raise ValueError("host blocks have other holders than the pool says")
        if sum(flow.running for flow in state.tree if not flow.children) > len(running):
            raise ValueError("the flow tree counts other running sequences than the batch")
        if len(running) != self.running or self.running > self.config.max_running:
            raise ValueError(f"{len(running)} sequences hold {self.running} slots")
        if self.running + self.waiting != len(state.sequences):
            raise ValueError("a live sequence neither runs nor waits, or does both")
        if not state.flights and state.ledger.on_hold(Hold.FENCE):
            raise ValueError("blocks are fenced with no step in flight")
        queued = sum(1 for _ in state.waiting.queued())
        if queued != sum(flow.own for flow in state.tree):
            raise ValueError("the flow tree counts other waiters than the queues hold")
