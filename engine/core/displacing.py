"""Displacement: a waiter of the flow furthest above its share ends for a newcomer below its own."""

from dataclasses import replace

from engine.core.promise_desk import book
from engine.core.sequence import Sequence, State
from engine.core.state import KernelState
from policies.displacement import Claim, most_over_share
from policies.fairness.tree import Flow
from telemetry.admission_events import SequenceDisplaced
from telemetry.events import Cause


def who_gives_way(state: KernelState, probe: Sequence, node: Flow, cap: int) -> Sequence | None:
    """The waiter to displace below `node`, whose queue holds at most `cap` tokens.

    None if it is the newcomer, `probe`, who has to give way. Level by level, the child furthest
    above its share by weight is the one; in it, the last in line that was never computed.
    """
    if not state.config.policy.admission.displace:
        return None
    share = float(cap)
    while not node.own and node is not probe.flow:
        claims = _claims(state, node, probe)
        if not claims:
            return None
        worst = most_over_share(claims, int(share))
        share *= worst.weight / sum(claim.weight for claim in claims)
        node = node.children[worst.name]
    last = next((s for s in state.waiting.back(node) if _may_go(s)), None)
    place = state.waiting.place
    if last is None or (node is probe.flow and place(probe) > place(last)):
        return None
    return last


def displace(
    state: KernelState, victim: Sequence, probe: Sequence, cap: int, wait: int, now: int
) -> None:
    """End `victim` and the other choices of its request, with a place held for it in `wait` ns."""
    queued = state.waiting.below(victim.flow.path).tokens
    choices = [*victim.group.forks, victim]
    numbers = [sequence.id for sequence in choices]
    tokens = sum(len(sequence.tokens) for sequence in choices)
    promised = state.outlook.ready and book(
        state, victim.flow.path, victim.claims, numbers, tokens, now + wait, now
    )
    for sequence in choices:
        state.emit(
            SequenceDisplaced(
                now=now,
                sequence=sequence.id,
                flow=sequence.flow.path,
                beneficiary=probe.id,
                beneficiary_flow=probe.flow.path,
                queued_tokens=queued,
                queue_cap=cap,
            )
        )
        state.end(sequence, Cause.DISPLACED, now, "its flow has more queued than its share")
        number, finished = state.outputs.ended[-1]
        told = replace(finished, retry_after=wait, promised=promised)
        state.outputs.ended[-1] = (number, told)


def _claims(state: KernelState, node: Flow, probe: Sequence) -> list[Claim]:
    """What each child of `node` has queued, the newcomer included."""
    claims = []
    for child in node.children.values():
        own = child.path == probe.flow.path[: len(child.path)]
        if child.queued or own:
            tokens = state.waiting.below(child.path).tokens + (len(probe.tokens) if own else 0)
            claims.append(Claim(child.path[-1], child.weight, tokens))
    return claims


def _may_go(sequence: Sequence) -> bool:
    """Never computed, and not let in on a promise."""
    return sequence.state is State.WAITING and sequence.since == sequence.arrived
