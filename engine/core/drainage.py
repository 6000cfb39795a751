"""How long what waits will take, by the fluid model of `policies.drain`, in seconds."""

from engine.core.commands import Submit
from engine.core.memory import promised_blocks
from engine.core.outlook import Price
from engine.core.reserve import reserved_blocks
from engine.core.sequence import Sequence
from engine.core.state import KernelState
from engine.core.waiting import Backlog
from policies.drain import Level, drained_by
from policies.fairness.tree import Flow
from telemetry.units import SECOND

BELIEF = 5.0  # seconds' worth of belief in the fluid


def start_seconds(state: KernelState, probe: Sequence, now: int) -> float:
    """Until a waiter that joined its queue now would enter the batch.

    At once while there is room for it and all before it, else when that much has been worked off.
    Places promised to others of its flow come first if they are due by then.
    """
    if not state.outlook.ready:
        return 0.0
    ahead = before(state, probe)
    start = _start(state, probe, ahead)
    due = [p for p in state.promises.of(probe.flow.path) if p.due <= now + start * SECOND]
    if not due:
        return start
    ahead.sequences += sum(promise.sequences for promise in due)
    ahead.tokens += sum(promise.tokens for promise in due)
    return _start(state, probe, ahead)


def starts_at_once(state: KernelState, submit: Submit) -> bool:
    """Whether there is room in the batch for a newcomer and for all who wait."""
    total, count = state.waiting.total, len(submit.sequences)
    slots = state.config.max_running - state.batch.running
    tokens = total.tokens + count * len(submit.prompt)
    return total.sequences + count <= slots and tokens <= free_tokens(state)


def _start(state: KernelState, probe: Sequence, ahead: Backlog) -> float:
    price, total = price_of_waiting(state), state.waiting.total
    own = price.of(1, len(probe.tokens))
    before_it = price.of(ahead.sequences, ahead.tokens)
    work = drained_by(own + before_it, levels(state, probe.flow, price))
    queued = price.of(total.sequences, total.tokens)
    share = min(1.0, (work - own) / queued) if queued > 0 else 0.0  # of what waits, served before
    tokens = len(probe.tokens) + share * total.tokens
    slots = state.config.max_running - state.batch.running
    slot_room = min(1.0, slots / (1 + share * total.sequences))
    over = max(0.0, tokens - free_tokens(state))
    # memory comes free by the token: whoever needs little of it waits for little
    mean = state.outlook.mean_entry
    for_memory = over * price.of(1, mean) / mean
    return max(work * (1.0 - slot_room), for_memory) / state.outlook.pace


def before(state: KernelState, probe: Sequence) -> Backlog:
    """The waiters of the probe's own flow that stand before it."""
    place, ahead = state.waiting.place(probe), Backlog()
    for sequence in state.waiting.front(probe.flow):
        if state.waiting.place(sequence) > place:
            break
        ahead.add(sequence, 1)
    return ahead


def places_seconds(
    state: KernelState, node: Flow, sequences: float, tokens: float, put_aside: int = 0
) -> float:
    """Until a backlogged node of the tree has given up that much of its queue.

    As its queue has been moving lately; by the fluid as long as that was hardly seen. Places of
    work that was running and is `put_aside` come free as soon as it runs again, sooner than a queue
    moves by ends, but not sooner than the fluid.
    """
    price, seen = price_of_waiting(state), node.departures
    work = price.of(sequences, tokens)
    fluid = drained_by(work, levels(state, node, price)) / state.outlook.pace
    if not fluid:
        return 0.0
    left = price.of(seen.sequences, seen.tokens) + BELIEF * work / fluid
    moving = work * (BELIEF + seen.seconds * state.step_time.slowness) / left
    return max(min(fluid, moving), moving * (1 - put_aside / sequences))


def price_of_waiting(state: KernelState) -> Price:
    """What waiting requests cost, at their mean prompt and output cap; where none waits, the usual

    ones: nobody asks for all the output that the context could hold.
    """
    total = state.waiting.total
    if not total.sequences:
        return state.outlook.usual_price()
    return state.outlook.price(total.caps // total.sequences, total.tokens // total.sequences)


def levels(state: KernelState, flow: Flow, price: Price) -> list[Level]:
    """The path up from `flow`, each level with its siblings' waiting work in device seconds."""
    path = []
    for node in flow.upward():
        assert node.parent is not None  # `upward` ends below the root
        siblings = []
        for other in node.parent.children.values():
            if other is not node and other.queued:
                backlog = state.waiting.below(other.path)
                siblings.append((other.weight, price.of(backlog.sequences, backlog.tokens)))
        path.append(Level(node.weight, siblings))
    return path


def free_tokens(state: KernelState) -> int:
    """Tokens of KV that newcomers may take at once."""
    blocks = state.ledger.available - promised_blocks(state) - reserved_blocks(state)
    return max(0, blocks) * state.config.block_size
