"""Full queues: who is let in, who has to make room, and when there will be some.

Places promised to a tenant's own refused callers count as taken for its fresh arrivals, whatever
the queue: those of other tenants are no matter of theirs. Only when the tenant's queue has moved
faster than was promised, and is down to half of what it may hold, are fresh arrivals let in before
promised returns that will still find their place when they are due. Who starts at once takes no
place in a queue from anybody, so that nobody is refused for promises while the engine has room.
"""

from dataclasses import dataclass
from math import ceil

from engine.core.commands import Submit
from engine.core.displacing import displace, who_gives_way
from engine.core.drainage import places_seconds, starts_at_once
from engine.core.refusal import UNKNOWN_WAIT, Refusal
from engine.core.sequence import Sequence
from engine.core.state import KernelState
from engine.core.waiting import Backlog
from policies.fairness.tree import Flow
from policies.promises import Tally
from telemetry.events import Cause
from telemetry.units import SECOND

MOST_DISPLACED = 8  # by one arrival
HALF = 0.5  # of what a queue may hold, to which promises may leave it empty


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue below one node of the flow tree, what it may hold, and what the newcomer's tenant

    was promised.
    """

    node: Flow
    backlog: Backlog
    held: Tally
    sequences: int
    tokens: int

    def holds(self, submit: Submit, held: Tally, part: float = 1.0) -> bool:
        """Whether `part` of it holds the newcomer besides what waits and is `held`."""
        count, backlog = len(submit.sequences), self.backlog
        return (
            backlog.sequences + held.sequences + count <= part * self.sequences
            and backlog.tokens + held.tokens + count * len(submit.prompt) <= part * self.tokens
        )

    def mean_tokens(self, submit: Submit) -> float:
        """Tokens of those in line, promised returns included; of the newcomer where none is."""
        count = self.backlog.sequences + self.held.sequences
        tokens = self.backlog.tokens + self.held.tokens
        return tokens / count if count else float(len(submit.prompt))


def make_place(state: KernelState, submit: Submit, probe: Sequence, now: int) -> None:
    """Check the caps of the tenant and of the engine for a fresh arrival; raises Refusal.

    Waiters of a flow above its share are displaced for it where there are any.
    """
    tenant = state.tree.find(probe.flow.path[:1])
    assert tenant is not None  # the probe's flow lies below it
    own, everyone = _queues(state, submit, tenant)
    for queue in (own, everyone):
        held_back = _held_back(state, queue, own, submit, now)
        _make_place_in(state, queue, submit, probe, now, held_back=held_back)


def wait_for_place(
    state: KernelState, submit: Submit, tenant: Flow, probe: Sequence, now: int
) -> int | None:
    """Nanoseconds that a fresh arrival of `tenant` would be told to wait for a full queue.

    None if it would be taken in. Nothing changes by asking.
    """
    own, everyone = _queues(state, submit, tenant)
    for queue in (own, everyone):
        held_back = _held_back(state, queue, own, submit, now)
        full = held_back or not queue.holds(submit, Tally())
        if full and who_gives_way(state, probe, queue.node, queue.tokens) is None:
            return _full(state, queue, submit).retry_after
    return None


def own_queue(state: KernelState, submit: Submit, tenant: Flow) -> Queue:
    """The queue of `tenant`, as a submission of its own would find it."""
    return _queues(state, submit, tenant)[0]


def is_there(state: KernelState, submit: Submit, since: int) -> bool:
    """Whether the queues have room for one who has stood in line `since` it was refused.

    What waits of its tenant and came to stand there later does not count, and neither do places
    promised later. Nothing changes by asking.
    """
    path = (submit.flow[0].name,)
    tenant = state.tree.find(path)
    if tenant is None:
        return True  # idle for so long that it was forgotten
    ahead = Tally()
    for promise in state.promises.below(path):
        if promise.booked <= since:
            ahead.add(promise.sequences, promise.tokens)
    for waiter in state.waiting.under(path):
        if waiter.since > since:
            ahead.add(-1, -len(waiter.tokens))
    return all(queue.holds(submit, ahead) for queue in _queues(state, submit, tenant))


def _queues(state: KernelState, submit: Submit, tenant: Flow) -> tuple[Queue, Queue]:
    """The queue of a newcomer's tenant, and that of the engine."""
    config, waiting, held = state.config, state.waiting, state.promises.tally(tenant.path)
    assert tenant.parent is not None  # the root
    own = Queue(
        tenant,
        waiting.below(tenant.path),
        held,
        submit.queue_requests or config.tenant_queued_requests,
        submit.queue_tokens or config.tenant_queued_tokens,
    )
    everyone = Queue(
        tenant.parent, waiting.total, held, config.max_queued_requests, config.max_queued_tokens
    )
    return own, everyone


def _make_place_in(
    state: KernelState,
    queue: Queue,
    submit: Submit,
    probe: Sequence,
    now: int,
    *,
    held_back: bool,
) -> None:
    """Displace until the newcomer fits; one at least if it is `held_back` by promises."""
    left = MOST_DISPLACED
    while held_back or not queue.holds(submit, Tally()):
        victim = who_gives_way(state, probe, queue.node, queue.tokens) if left else None
        if victim is None:
            raise _full(state, queue, submit)
        left, held_back = left - 1, False
        wait = _wait(state, queue, submit, 1, len(victim.tokens))
        displace(state, victim, probe, queue.tokens, wait, now)


def _held_back(state: KernelState, queue: Queue, own: Queue, submit: Submit, now: int) -> bool:
    """Whether a fresh arrival has to leave the room there is to promised returns.

    What is due later may still be drained by then, so promises nobody comes back for leave the
    queue at half of what it may hold, not empty.
    """
    if not queue.held.sequences or queue.holds(submit, queue.held):
        return False
    if starts_at_once(state, submit):
        return False
    return not (
        own.holds(submit, Tally(), HALF) and queue.holds(submit, _needed(state, queue, submit, now))
    )


def _needed(state: KernelState, queue: Queue, submit: Submit, now: int) -> Tally:
    """Room that must be free now for promised returns to find a place when each is due."""
    mean = queue.mean_tokens(submit)
    place = places_seconds(state, queue.node, 1, mean)
    held, needed = Tally(), Tally()
    for promise in state.promises.below((submit.flow[0].name,)):
        held.add(promise.sequences, promise.tokens)
        drained = max(0, promise.due - now) / SECOND / place if place > 0 else 0.0
        needed.sequences = max(needed.sequences, ceil(held.sequences - drained))
        needed.tokens = max(needed.tokens, ceil(held.tokens - drained * mean))
    return needed


def _full(state: KernelState, queue: Queue, submit: Submit) -> Refusal:
    owner = "the tenant's queue" if queue.node.path else "the server's queue"
    backlog, held, count = queue.backlog, queue.held, len(submit.sequences)
    promised = f", and {held.sequences} places in it are promised" if held.sequences else ""
    return Refusal(
        Cause.QUEUE_FULL if queue.node.path else Cause.SATURATED,
        f"{owner} holds {backlog.sequences} of {queue.sequences} sequences and "
        f"{backlog.tokens} of {queue.tokens} tokens{promised}",
        _wait(
            state,
            queue,
            submit,
            backlog.sequences + held.sequences + count - queue.sequences,
            backlog.tokens + held.tokens + count * len(submit.prompt) - queue.tokens,
        ),
        promise=state.outlook.ready,
    )


def _wait(state: KernelState, queue: Queue, submit: Submit, sequences: int, tokens: int) -> int:
    """Nanoseconds until that much of a queue is gone."""
    if not state.outlook.ready:
        return UNKNOWN_WAIT
    mean, backlog = queue.mean_tokens(submit), queue.backlog
    places = max(float(sequences), tokens / max(1.0, mean))
    aside = backlog.sequences - backlog.fresh
    seconds = places_seconds(state, queue.node, places, places * mean, aside)
    return max(1, int(seconds * SECOND))
