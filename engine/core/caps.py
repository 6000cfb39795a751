"""Full queues: who is let in, who has to make room, and when there will be some."""

from dataclasses import dataclass

from engine.core.commands import Submit
from engine.core.displacing import displace, who_gives_way
from engine.core.drainage import places_seconds
from engine.core.refusal import SECOND, UNKNOWN_WAIT, Refusal
from engine.core.sequence import Sequence
from engine.core.state import KernelState
from engine.core.waiting import Backlog
from policies.fairness.tree import Flow
from policies.promises import Tally
from telemetry.events import Cause

MOST_DISPLACED = 8  # by one arrival
ROUNDING = 1e-6  # of a place


@dataclass(frozen=True, slots=True)
class _Queue:
    """The queue below one node of the flow tree, and what it may hold."""

    node: Flow
    backlog: Backlog
    sequences: int
    tokens: int

    def mean_tokens(self, submit: Submit) -> float:
        """Tokens of a waiter, or of the newcomer where none waits."""
        backlog = self.backlog
        return (
            backlog.tokens / backlog.sequences if backlog.sequences else float(len(submit.prompt))
        )


def make_place(state: KernelState, submit: Submit, probe: Sequence, now: int) -> None:
    """Check the caps of the tenant and of the engine for a fresh arrival; raises Refusal.

    Waiters of a flow above its share are displaced for it where there are any.
    """
    config, waiting = state.config, state.waiting
    tenant = state.tree.find(probe.flow.path[:1])
    assert tenant is not None  # the probe's flow lies below it
    assert tenant.parent is not None  # the root
    own = _Queue(
        tenant,
        waiting.below(tenant.path),
        submit.queue_requests or config.tenant_queued_requests,
        submit.queue_tokens or config.tenant_queued_tokens,
    )
    everyone = _Queue(
        tenant.parent, waiting.total, config.max_queued_requests, config.max_queued_tokens
    )
    for queue in (own, everyone):
        _make_place_in(state, queue, submit, probe, now)


def _make_place_in(
    state: KernelState, queue: _Queue, submit: Submit, probe: Sequence, now: int
) -> None:
    left = MOST_DISPLACED
    while _over(state, queue, submit, now):
        victim = who_gives_way(state, probe, queue.node, queue.tokens) if left else None
        if victim is None:
            raise _full(state, queue, submit)
        left -= 1
        wait = _wait(state, queue, submit, 1, len(victim.tokens))
        displace(state, victim, probe, queue.tokens, wait, now)


def _over(state: KernelState, queue: _Queue, submit: Submit, now: int) -> bool:
    """Whether the newcomer exceeds the caps.

    Room is left for returns promised to its own tenant; places of others are no matter of its own.
    """
    sequences, tokens = _headroom(state, queue, submit, now)
    sequences += queue.backlog.sequences + len(submit.sequences)
    tokens += queue.backlog.tokens + len(submit.prompt) * len(submit.sequences)
    return sequences > queue.sequences or tokens > queue.tokens


def _headroom(state: KernelState, queue: _Queue, submit: Submit, now: int) -> tuple[float, float]:
    """Room that must be free now for promised returns to find a place when each is due.

    What is due later may still be drained by then, so a promise nobody comes back for costs little.
    """
    booked = state.promises.below((submit.flow[0].name,))
    if not booked:
        return 0.0, 0.0
    mean = queue.mean_tokens(submit)
    place = places_seconds(state, queue.node, 1, mean)
    held = Tally()
    sequences, tokens = 0.0, 0.0
    for promise in booked:
        held.sequences += promise.sequences
        held.tokens += promise.tokens
        drained = ROUNDING + (max(0, promise.due - now) / SECOND / place if place > 0 else 0.0)
        sequences = max(sequences, held.sequences - drained)
        tokens = max(tokens, held.tokens - drained * mean)
    return sequences, tokens


def _full(state: KernelState, queue: _Queue, submit: Submit) -> Refusal:
    owner = "the tenant's queue" if queue.node.path else "the server's queue"
    held = state.promises.tally((submit.flow[0].name,))
    count = len(submit.sequences)
    return Refusal(
        Cause.QUEUE_FULL if queue.node.path else Cause.SATURATED,
        f"{owner} holds {queue.backlog.sequences} of {queue.sequences} sequences and "
        f"{queue.backlog.tokens} of {queue.tokens} tokens",
        _wait(
            state,
            queue,
            submit,
            queue.backlog.sequences + held.sequences + count - queue.sequences,
            queue.backlog.tokens + held.tokens + count * len(submit.prompt) - queue.tokens,
        ),
        promise=state.outlook.ready,
    )


def _wait(state: KernelState, queue: _Queue, submit: Submit, sequences: int, tokens: int) -> int:
    """Nanoseconds until that much of a queue is gone."""
    if not state.outlook.ready:
        return UNKNOWN_WAIT
    mean = queue.mean_tokens(submit)
    places = max(float(sequences), tokens / max(1.0, mean))
    return max(1, int(places_seconds(state, queue.node, places, places * mean) * SECOND))
