"""Waiters about to miss their deadline: given up when that is certain, started when they press."""

from heapq import heapify, heappop, heappush

from engine.core.memory import promised_blocks, shortage
from engine.core.preempt import preempt
from engine.core.sequence import Sequence, State
from engine.core.state import SLACK, KernelState
from telemetry.events import Cause, PreemptReason
from telemetry.units import SECOND

HORIZON = 4.0  # steps before their latest start from which on waiters are looked at


def watch(state: KernelState, sequence: Sequence, *, may_press: bool) -> None:
    """Look at a newcomer again shortly before it is too late for it to start.

    If it `may_press`, running work of its tenant can then be made to give way to it.
    """
    if sequence.urgency is not None:
        needed = state.outlook.first_token_seconds(sequence.prompt_length)
        latest = sequence.urgency - int(needed * SECOND)
        heappush(state.pressing, (latest, sequence.id, may_press))
        if len(state.pressing) > 2 * len(state.sequences) + SLACK:
            state.pressing = [entry for entry in state.pressing if _is_silent(state, entry[1])]
            heapify(state.pressing)


def attend(state: KernelState, now: int) -> None:
    """Before a step is planned: drop what became hopeless, make room for what presses most."""
    admission, tightest = state.config.policy.admission, None
    for sequence, may_press in _pressing(state, now):
        slack = _slack(state, sequence, now)
        if slack < 0 and admission.drop_hopeless:
            for choice in (*sequence.group.forks, sequence):  # the others wait for its prompt
                state.end(choice, Cause.RELEGATED, now, "given up before its deadline passed")
            continue
        heappush(state.pressing, (now + int(slack * SECOND), sequence.id, may_press))
        speaks = may_press and sequence.first_token_deadline is not None
        if speaks and (tightest is None or (slack, sequence.id) < tightest[:2]):
            tightest = slack, sequence.id, sequence
    if tightest is not None and tightest[0] < admission.urgent_steps * state.outlook.step_seconds:
        _start(state, tightest[2], now)


def _pressing(state: KernelState, now: int) -> list[tuple[Sequence, bool]]:
    """Waiters that have not spoken and must start within the horizon, and whether they may press.

    Entries of those who run or ended are dropped; late ones that are kept end by their deadline.
    """
    limit = now + int(HORIZON * state.outlook.step_seconds * SECOND)
    found = []
    while state.pressing and state.pressing[0][0] <= limit:
        _, number, may_press = heappop(state.pressing)
        if _is_silent(state, number):
            sequence = state.sequences[number]
            if sequence.state is not State.RUNNING:
                found.append((sequence, may_press))
    return found


def _is_silent(state: KernelState, number: int) -> bool:
    """Whether a sequence lives and has not spoken."""
    sequence = state.sequences.get(number)
    return sequence is not None and sequence.first_token is None


def _slack(state: KernelState, sequence: Sequence, now: int) -> float:
    """Seconds for which its start can still wait."""
    assert sequence.urgency is not None  # only those with a deadline are watched
    needed = state.outlook.first_token_seconds(len(sequence.tokens))
    return (sequence.urgency - now) / SECOND - needed


def _start(state: KernelState, sequence: Sequence, now: int) -> None:
    """Bring `sequence` to the head of its flow, and take back what keeps it out if that helps."""
    if not sequence.pressing and state.waiting.unqueue(sequence):
        sequence.pressing = True
        state.queue(sequence, now)
    if state.next_flow(now) is not sequence.flow:
        return
    spoken_for = promised_blocks(state) + state.batch.running // state.config.block_size
    short = shortage(state, sequence, spoken_for)
    victims: list[Sequence] = []
    for victim in _cheapest_first(state, sequence):
        if short <= 0 and not (state.batch.full and not victims):
            break
        victims.append(victim)
        short -= sum(1 for block in victim.blocks if state.ledger.references(block) == 1)
    if short <= 0:
        for victim in victims:
            preempt(state, victim, PreemptReason.URGENT, sequence, now)


def _cheapest_first(state: KernelState, sequence: Sequence) -> list[Sequence]:
    """Running work of the same tenant that has kept its promises: it has spoken and is not due."""
    tenant = sequence.flow.path[0]
    running = [
        other
        for other in state.batch.live()
        if other.flow.path[0] == tenant and other.first_token is not None and other.deadline is None
    ]
    return sorted(running, key=lambda s: (int(state.batch.computed[s.slot]), s.id))
