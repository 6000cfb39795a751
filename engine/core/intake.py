"""Commands applied to the kernel: arrivals, cancellations, and the rest."""

from engine.core.cancel import cancel, check_alive
from engine.core.caps import make_place
from engine.core.commands import (
    Abort,
    Cancel,
    Command,
    Drain,
    ExecutorLost,
    ExternalService,
    Finish,
    FlowNode,
    Submit,
)
from engine.core.feasibility import cost_of, judge, note_load, watch_newcomer
from engine.core.outputs import Finished
from engine.core.promise_desk import book, claim, standing
from engine.core.refusal import UNKNOWN_WAIT, Refusal
from engine.core.sequence import Group, Sequence, State
from engine.core.state import KernelState
from policies.admission import Verdict
from telemetry.billing_events import ExternalServiceCharged
from telemetry.events import (
    Cause,
    SequenceArrived,
    SequenceRefused,
)
from telemetry.units import SECOND
from tenants.choices import OnExpiry, OnInfeasible


def apply(state: KernelState, command: Command, now: int) -> None:
    """Carry out one command."""
    match command:
        case Submit():
            _submit(state, command, now)
        case Cancel():
            cancel(state, command, now)
        case Abort():
            for number in command.sequences:
                if number in state.sequences:
                    state.end(state.sequences[number], command.cause, now)
        case Finish():
            _finish(state, command, now)
        case ExternalService():
            _external(state, command, now)
        case Drain():
            state.draining = True
        case ExecutorLost():
            _executor_lost(state, command, now)


def _submit(state: KernelState, submit: Submit, now: int) -> None:
    try:
        probe = _admit(state, submit, now)
    except Refusal as refusal:
        _refuse(state, submit, refusal, now)
        return
    group = probe.group
    for choice in range(len(submit.sequences)):
        sequence = probe
        if choice:
            sequence = Sequence(submit, choice, flow=probe.flow, group=group, arrived=now)
        sequence.since, sequence.max_tokens = probe.since, probe.max_tokens
        if sequence.tpot_target is None:
            sequence.tpot_target = state.config.policy.tpot_target
        sequence.on_expiry = _on_expiry(state, submit)
        state.add(sequence)
        state.emit(_arrival(sequence, now))
        if group.leader is None:
            group.leader = sequence
            state.queue(sequence, now)
            watch_newcomer(state, submit, sequence)
        else:
            group.forks.append(sequence)


def _on_expiry(state: KernelState, submit: Submit) -> str:
    """Who takes in for a part what would end late wants the part, unless they say otherwise."""
    policy = state.config.policy.admission
    if submit.on_expiry is not None:
        return submit.on_expiry
    late = submit.on_infeasible or policy.on_infeasible
    return OnExpiry.PARTIAL if late == OnInfeasible.PARTIAL else policy.on_expiry


def _arrival(sequence: Sequence, now: int) -> SequenceArrived:
    return SequenceArrived(
        now=now,
        sequence=sequence.id,
        lineage=sequence.lineage,
        flow=sequence.flow.path,
        prompt_tokens=sequence.prompt_length,
        max_tokens=sequence.max_tokens,
        deadline=sequence.deadline,
        first_token_deadline=sequence.first_token_deadline,
    )


def _admit(state: KernelState, submit: Submit, now: int) -> Sequence:
    """A submission that may wait, as the first of its choices; raises Refusal otherwise."""
    _check_sense(state, submit, now)
    flow = state.tree.reach(_pairs(submit.flow))
    if flow is None:
        raise Refusal(Cause.SATURATED, "too many flows are in use", UNKNOWN_WAIT)
    flow.priority = submit.flow[-1].priority
    probe = Sequence(submit, 0, flow=flow, group=Group(), arrived=now)
    place = claim(state, submit, flow.path, now)
    cost = cost_of(state, submit)
    if place is not None:
        probe.since = place.booked  # it was counted when it was refused
    else:
        note_load(state, submit, cost, now)
        make_place(state, submit, probe, now)
    decision = judge(state, submit, probe, cost, now, claimed=place is not None)
    probe.max_tokens, probe.on_trial = decision.max_tokens, decision.verdict is Verdict.TRIAL
    return probe


def _check_sense(state: KernelState, submit: Submit, now: int) -> None:
    """Raise Refusal for what no amount of room would help."""
    if state.draining:
        raise Refusal(Cause.DRAINING, "the server is shutting down", 5 * SECOND)
    check_alive(state, submit.lineage, now)
    if any(number in state.sequences for number in submit.sequences):
        raise Refusal(Cause.DUPLICATE, "a sequence id is already in use")
    _check_size(state, submit)
    if submit.deadline is not None and submit.deadline <= now:
        raise Refusal(Cause.DEADLINE, "the deadline passed before the request arrived")
    if submit.first_token_deadline is not None and submit.first_token_deadline <= now:
        raise Refusal(Cause.FIRST_TOKEN_DEADLINE, "the first-token deadline passed before arrival")


def _check_size(state: KernelState, submit: Submit) -> None:
    config = state.config
    prompt = submit.prompt
    if not len(prompt):
        raise Refusal(Cause.BAD_TOKEN, "the prompt has no tokens")
    if int(prompt.min()) < 0 or int(prompt.max()) >= config.vocab_size:
        raise Refusal(
            Cause.BAD_TOKEN, f"a prompt token id is outside the vocabulary of {config.vocab_size}"
        )
    if submit.max_tokens < 1:
        raise Refusal(Cause.TOO_LARGE, "the prompt leaves no room for output in the context")
    total = len(prompt) + submit.max_tokens
    room = min(config.max_context, config.num_blocks * config.block_size)
    if total > room:
        raise Refusal(
            Cause.TOO_LARGE,
            f"{len(prompt)} prompt tokens and {submit.max_tokens} output tokens can never fit: "
            f"a sequence may hold {room} tokens",
        )
    _check_queues(state, submit)


def _check_queues(state: KernelState, submit: Submit) -> None:
    """Nobody has to make room, nor to wait, for what an empty queue does not hold."""
    config, count = state.config, len(submit.sequences)
    tokens = count * len(submit.prompt)
    most = min(submit.queue_requests or config.tenant_queued_requests, config.max_queued_requests)
    most_tokens = min(submit.queue_tokens or config.tenant_queued_tokens, config.max_queued_tokens)
    if count > most or tokens > most_tokens:
        raise Refusal(
            Cause.TOO_LARGE,
            f"{count} sequences with {tokens} prompt tokens in all can never wait: the queue holds "
            f"at most {most} sequences and {most_tokens} tokens",
        )


def _refuse(state: KernelState, submit: Submit, refusal: Refusal, now: int) -> None:
    retry_after, promised = _promise(state, submit, refusal, now)
    finished = Finished(
        cause=refusal.cause,
        prompt_tokens=len(submit.prompt),
        cached_tokens=0,
        output_tokens=0,
        detail=refusal.detail,
        retry_after=retry_after,
        promised=promised,
        forecast=refusal.forecast,
        refused=True,
    )
    for number in submit.sequences:
        state.emit(
            SequenceRefused(
                now=now,
                sequence=number,
                lineage=submit.lineage,
                cause=refusal.cause,
                detail=refusal.detail,
                retry_after=retry_after,
                promised=promised,
            )
        )
        state.outputs.ended.append((number, finished))


def _promise(
    state: KernelState, submit: Submit, refusal: Refusal, now: int
) -> tuple[int | None, bool]:
    """When a refused caller may return (ns from now), and whether a place is held for it then."""
    wait = refusal.retry_after
    if wait is None or not refusal.promise:
        return wait, False
    path = tuple(node.name for node in submit.flow)
    held = standing(state, submit, path)
    if held is not None and held.due > now:
        return held.due - now, True
    tokens = len(submit.prompt) * len(submit.sequences)
    booked = book(state, path, submit.claims, submit.sequences, tokens, now + wait, now)
    return wait, booked


def _finish(state: KernelState, finish: Finish, now: int) -> None:
    sequence = state.sequences.get(finish.sequence)
    if sequence is not None:
        state.end(sequence, Cause.STOP_STRING, now, keep=finish.output_tokens)


def _external(state: KernelState, service: ExternalService, now: int) -> None:
    flow = state.tree.reach(_pairs(service.flow))
    if flow is not None:
        state.tree.charge(flow, service.amount)
        state.emit(ExternalServiceCharged(now, flow.path, service.amount))


def _pairs(nodes: tuple[FlowNode, ...]) -> tuple[tuple[str, float], ...]:
    return tuple((node.name, node.weight) for node in nodes)


def _executor_lost(state: KernelState, lost: ExecutorLost, now: int) -> None:
    state.flights.clear()
    for sequence in state.batch.live():
        state.end(sequence, Cause.ENGINE_FAILED, now, lost.detail)
    for sequence in state.paused.values():
        state.release_blocks(sequence)
        sequence.move(State.PREEMPTED)
    state.paused.clear()
    for sequence in state.sequences.values():
        state.host.give_back(sequence.host_blocks)  # the host pool was the executor's too
        sequence.host_blocks, sequence.computed = [], 0
    state.host.settle()
    state.transfers.clear()
    state.ledger.retire(state.last_step)
    state.ledger.forget_all()
    state.left.clear()
