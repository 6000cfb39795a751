"""Is a submission worth taking in? What is predicted, and what its tenant wants done then."""

from dataclasses import replace

import numpy as np

from engine.core.commands import Submit
from engine.core.drainage import start_seconds
from engine.core.refusal import Refusal
from engine.core.sequence import Sequence
from engine.core.state import KernelState
from engine.core.urgency import watch
from policies.admission import (
    Decision,
    Forecast,
    Ground,
    Verdict,
    Wish,
    decide,
    memory_claim,
    memory_over,
    planned_seconds,
    worth_a_trial,
)
from policies.drain import Level, drained_by
from policies.fairness.tree import Flow
from telemetry.admission_events import DeadlineInfeasible
from telemetry.events import Cause
from telemetry.units import SECOND
from tenants.choices import OnInfeasible

NEARLY_ALL = 0.99  # of outputs are no longer than what is thought to be possible

SENTENCES = {
    Ground.FIRST_TOKEN: "its first token is predicted in {first:.1f} s and due in {due:.1f} s",
    Ground.COMPLETION: "its end is predicted in {finish:.1f} s and due in {due:.1f} s",
    Ground.DENSITY: "it takes more of the tenant's share than can be spared under this load",
    Ground.MEMORY: "the memory it needs is spoken for by work before it",
}


def judge(
    state: KernelState, submit: Submit, probe: Sequence, cost: float, now: int, *, claimed: bool
) -> Decision:
    """How a submission is taken in; raises Refusal if it is not.

    `probe` is its sequence as it would wait, `cost` its price in device seconds. A caller who
    claims a promised place is only refused what cannot be done at all.
    """
    mode = _mode(state, submit)
    wish = _wish(state, submit, now)
    accepted = Decision(Verdict.ADMIT, submit.max_tokens)
    if not wish.has_deadline or (mode == "accept" and not _idle(state)):
        return accepted
    # In goodput mode the gates say whether it starts soon.
    start = 0.0 if mode == "goodput" or claimed else start_seconds(state, probe, now)
    forecast = _forecast(state, probe, start, wish)
    closed = None
    if mode == "goodput" and not claimed and state.outlook.ready:
        closed = _closed_gate(state, probe, cost, now)
    decision = _tried(state, probe, wish, forecast, decide(wish, forecast, closed), now)
    if mode == "accept" and decision.verdict is not Verdict.TRIAL:
        return accepted
    if decision.ground is not None:
        _report(state, submit, probe, decision, forecast, now)
    if decision.verdict in (Verdict.REJECT, Verdict.ROUTE):
        raise _refusal(state, probe, wish, forecast, decision, cost)
    return decision


def _tried(
    state: KernelState,
    probe: Sequence,
    wish: Wish,
    forecast: Forecast,
    decision: Decision,
    now: int,
) -> Decision:
    """On trial instead of refused where nothing lives that would show if the forecast is wrong.

    What is routed is not put at risk, since it has somewhere to go. What is taken in for less than
    was asked, or regardless, shows it without a trial.
    """
    if decision.verdict is not Verdict.REJECT or not _idle(state):
        return decision
    steps = [*state.outlook.prompt_steps(probe.prompt_length)]
    if wish.finish_in is not None:
        steps.append(state.outlook.token_step(probe.prompt_length))
    if not worth_a_trial(wish, forecast, state.trials.doubt(steps, now)):
        return decision
    return replace(decision, verdict=Verdict.TRIAL)


def _idle(state: KernelState) -> bool:
    return not state.sequences and not state.flights


def spoken_for(state: KernelState, flow: Flow, need: float) -> float:
    """KV tokens wanted by what runs and waits of a tenant, and by others as far as they come first.

    `need` tokens more are asked for by `flow`.
    """
    top = _top(state, flow)
    batch = state.batch
    wanted: dict[Flow, float] = {}
    running = batch.ids >= 0
    held = np.bincount(batch.flow[running], weights=batch.known[running] + 1)
    for index in np.flatnonzero(held).tolist():
        node = state.tree.by_index[index]
        tenant = _top(state, node)
        wanted[tenant] = wanted.get(tenant, 0.0) + float(held[index])
    assert top.parent is not None  # the root has no flow of its own
    for node in top.parent.children.values():
        if node.queued:
            backlog = state.waiting.below(node.path)
            wanted[node] = wanted.get(node, 0.0) + backlog.tokens + backlog.sequences
    own = wanted.pop(top, 0.0)
    others = [(node.weight, tokens) for node, tokens in wanted.items()]
    return drained_by(own + need, [Level(top.weight, others)]) - need


def _mode(state: KernelState, submit: Submit) -> str:
    return submit.admission or state.config.policy.admission.mode


def _wish(state: KernelState, submit: Submit, now: int) -> Wish:
    return Wish(
        max_tokens=submit.max_tokens,
        first_token_in=_seconds_left(submit.first_token_deadline, now),
        finish_in=_seconds_left(submit.deadline, now),
        on_infeasible=submit.on_infeasible or state.config.policy.admission.on_infeasible,
    )


def _seconds_left(deadline: int | None, now: int) -> float | None:
    return None if deadline is None else (deadline - now) / SECOND


def _forecast(state: KernelState, probe: Sequence, start: float, wish: Wish) -> Forecast:
    outlook, prompt, admission = state.outlook, probe.prompt_length, state.config.policy.admission
    prompt_seconds = outlook.first_token_seconds(prompt)
    token, output = outlook.token_seconds(prompt), 0.0
    if outlook.ready:
        lengths = outlook.lengths.of(probe.lineage.tenant)
        least = lengths.quantile(admission.length_quantile)
        most = min(lengths.quantile(NEARLY_ALL), probe.max_tokens)
        output = (min(least, most) - 1) * token
        if wish.finish_in is not None:
            planned = planned_seconds(wish.finish_in, prompt_seconds, admission)
            output = min(max(output, planned), (most - 1) * token)
    first = start + prompt_seconds
    return Forecast(start, first, first + output, token)


def cost_of(state: KernelState, submit: Submit) -> float:
    """The price of what is asked for, in device seconds."""
    outlook = state.outlook
    length = outlook.lengths.of(submit.lineage.tenant)
    return outlook.cost(len(submit.prompt), length, submit.max_tokens) * len(submit.sequences)


def note_load(state: KernelState, submit: Submit, cost: float, now: int) -> None:
    """Count what is asked for, whatever becomes of it, a full queue's refusal included."""
    outlook, tenant = state.outlook, submit.lineage.tenant
    outlook.offered.observe(tenant, submit.flow[0].weight, now, cost)
    if _mode(state, submit) == "goodput":
        outlook.gate(tenant).observe(now, cost)


def _closed_gate(state: KernelState, probe: Sequence, cost: float, now: int) -> Ground | None:
    """The goodput gate that keeps the probe out; each works within its tenant's own share."""
    outlook, tenant = state.outlook, probe.lineage.tenant
    weight = _top(state, probe.flow).weight
    rate = outlook.offered.rate_for(tenant, weight, state.config.policy.admission.density, now)
    if cost > outlook.gate(tenant).threshold(now, rate):
        return Ground.DENSITY
    return Ground.MEMORY if _memory_over(state, probe)[0] > 0 else None


def _memory_over(state: KernelState, probe: Sequence) -> tuple[float, float]:
    """By how many tokens the probe's claim on memory exceeds what there is, and the claim."""
    config, admission = state.config, state.config.policy.admission
    pool = config.num_blocks * config.block_size
    claim = memory_claim(probe.prompt_length + 1, pool, admission)
    return memory_over(spoken_for(state, probe.flow, claim), claim, pool, admission), claim


def _top(state: KernelState, flow: Flow) -> Flow:
    top = state.tree.find(flow.path[:1])
    assert top is not None  # a node outlives what is below it
    return top


def _report(
    state: KernelState,
    submit: Submit,
    probe: Sequence,
    decision: Decision,
    forecast: Forecast,
    now: int,
) -> None:
    state.emit(
        DeadlineInfeasible(
            now=now,
            sequence=probe.id,
            lineage=probe.lineage,
            flow=probe.flow.path,
            verdict=str(decision.verdict),
            ground=str(decision.ground),
            start=now + int(forecast.start * SECOND),
            first_token=now + int(forecast.first_token * SECOND),
            finish=now + int(forecast.finish * SECOND),
            deadline=submit.deadline,
            first_token_deadline=submit.first_token_deadline,
            max_tokens=decision.max_tokens,
        )
    )


def _refusal(
    state: KernelState,
    probe: Sequence,
    wish: Wish,
    forecast: Forecast,
    decision: Decision,
    cost: float,
) -> Refusal:
    assert decision.ground is not None  # every rejection has one
    due = wish.first_token_in if decision.ground is Ground.FIRST_TOKEN else wish.finish_in
    detail = SENTENCES[decision.ground].format(
        first=forecast.first_token, finish=forecast.finish, due=due or 0.0
    )
    wait = _wait(state, probe, wish, forecast, decision.ground, cost)
    hint = None if wait is None else max(1, int(wait * SECOND))
    returns = hint is not None and decision.verdict is Verdict.REJECT  # not from another engine
    return Refusal(Cause.DEADLINE_INFEASIBLE, detail, hint, promise=returns, forecast=forecast)


def _wait(
    state: KernelState,
    probe: Sequence,
    wish: Wish,
    forecast: Forecast,
    ground: Ground,
    cost: float,
) -> float | None:
    """Seconds until a request with the same time budget would be taken in; None if never."""
    predicted = {Ground.FIRST_TOKEN: forecast.first_token, Ground.COMPLETION: forecast.finish}
    allowed = {Ground.FIRST_TOKEN: wish.first_token_in, Ground.COMPLETION: wish.finish_in}
    if ground in predicted:
        excess = predicted[ground] - (allowed[ground] or 0.0)
        return excess if excess <= forecast.start else None
    if ground is Ground.DENSITY:
        return None
    over, claim = _memory_over(state, probe)
    return cost * min(over, claim) / (probe.prompt_length + 1) / state.outlook.pace


def watch_newcomer(state: KernelState, submit: Submit, sequence: Sequence) -> None:
    """Have an admitted newcomer looked after while it waits, as its tenant wants late work treated.

    Not one on trial: it is hopeless by the very forecast that it puts to the test. Only goodput
    mode lets a newcomer take the place of running work.
    """
    choice = submit.on_infeasible or state.config.policy.admission.on_infeasible
    if choice != OnInfeasible.ACCEPT and not sequence.on_trial:
        watch(state, sequence, may_press=_mode(state, submit) == "goodput")
