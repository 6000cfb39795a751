"""How a tenant stands with one engine, for an orchestrator that asks. Asking changes nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

import numpy as np

from engine.core.caps import own_queue, wait_for_place
from engine.core.commands import FlowNode, Submit
from engine.core.drainage import start_seconds
from engine.core.plan import Sampling
from engine.core.sequence import Group, Sequence
from engine.core.state import KernelState
from policies.drain import fair_rates
from policies.fairness.tree import Flow
from telemetry.lineage import Lineage

LAST = 2**63 - 1  # the id of one who comes after all others


@dataclass(frozen=True, slots=True)
class Inquiry:
    """Who asks: the flow that a call of theirs would have, and the caps as in `Submit`."""

    flow: tuple[FlowNode, ...]
    queue_requests: int | None = None
    queue_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Pressure:
    """The tenant's sequences that run, and those `queued` with their prompt tokens and their caps;

    `promised` places count as taken. For a call of ordinary size that came now: its `start` and its
    `duration` from then on, in seconds (None while nothing can be foretold), and the nanoseconds it
    would be told to wait where it would be refused for a full queue. `parallel` sequences of the
    tenant may run side by side while those of others go on. `debt` is by how much more the tenant
    was served for its weight than the least served of the others who wait, in units of the cost
    function.
    """

    running: int
    queued: int
    queued_tokens: int
    max_queued: int
    max_queued_tokens: int
    promised: int
    start: float | None
    duration: float | None
    parallel: int
    debt: float
    retry_after: int | None


def pressure(state: KernelState, inquiry: Inquiry, now: int) -> Pressure:
    """How the one who asks stands at `now`."""
    flow = _reach(state, inquiry.flow)
    submit = _ordinary(state, inquiry)
    probe = Sequence(submit, 0, flow=flow, group=Group(), arrived=now)
    tenant = list(flow.upward())[-1]
    queue = own_queue(state, submit, tenant)
    with _only_looking(state):
        return Pressure(
            running=tenant.running,
            queued=queue.backlog.sequences,
            queued_tokens=queue.backlog.tokens,
            max_queued=min(queue.sequences, state.config.max_queued_requests),
            max_queued_tokens=min(queue.tokens, state.config.max_queued_tokens),
            promised=queue.held.sequences,
            start=_start(state, probe, now),
            duration=_duration(state),
            parallel=_parallel(state, tenant),
            debt=_debt(state, tenant),
            retry_after=wait_for_place(state, submit, tenant, probe, now),
        )


def _reach(state: KernelState, nodes: tuple[FlowNode, ...]) -> Flow:
    """The flow at a path; what is not there stands under its parent without being its child."""
    flow = state.tree.root
    for node in nodes:
        child = flow.children.get(node.name)
        flow = child or Flow((*flow.path, node.name), node.weight, flow)
    return flow


def _ordinary(state: KernelState, inquiry: Inquiry) -> Submit:
    """A call with a prompt as long as they are in the mean."""
    tokens = max(1, round(state.outlook.mean_entry))
    return Submit(
        lineage=Lineage(inquiry.flow[0].name, "", "", "", ""),
        sequences=(LAST,),
        flow=inquiry.flow,
        prompt=np.zeros(tokens, np.int32),
        salt=b"",
        block_hashes=(),
        max_tokens=1,
        sampling=Sampling(),
        queue_requests=inquiry.queue_requests,
        queue_tokens=inquiry.queue_tokens,
    )


def _start(state: KernelState, probe: Sequence, now: int) -> float | None:
    idle = not state.waiting.total.sequences and not state.batch.full
    return start_seconds(state, probe, now) if state.outlook.ready or idle else None


def _parallel(state: KernelState, tenant: Flow) -> int:
    """The tenant's part of what can run at once: max-min by weight, as others leave it."""
    others = (flow for flow in state.tree.root.children.values() if flow is not tenant)
    demands = [(flow.weight, float(flow.live)) for flow in others if flow.live]
    return max(1, int(fair_rates([(tenant.weight, inf), *demands], _capacity(state))[0]))


def _duration(state: KernelState) -> float | None:
    outlook = state.outlook
    if not outlook.ready:
        return None
    prompt = round(outlook.mean_entry)
    output = _mean_output(state) * outlook.token_seconds(prompt)
    return outlook.first_token_seconds(prompt) + output


def _capacity(state: KernelState) -> float:
    """Sequences that can run at once: the slots, or as many as the memory holds to their end."""
    config, outlook = state.config, state.outlook
    if not outlook.ready:
        return config.max_running
    tokens = outlook.mean_entry + _mean_output(state)
    return min(config.max_running, config.num_blocks * config.block_size / tokens)


def _mean_output(state: KernelState) -> float:
    """Outputs are taken to be as long as they have been, within the caps of those now running.

    Where none runs, within those of what ran.
    """
    running = state.batch.ids >= 0
    caps = (state.batch.limit - state.batch.prompt)[running]
    cap = int(caps.mean() if len(caps) else state.outlook.mean_cap) or state.config.max_context
    return state.outlook.lengths.overall().moments(cap)[0]


def _debt(state: KernelState, tenant: Flow) -> float:
    others = [flow.counter for flow in state.tree.root.waiting.values() if flow is not tenant]
    return (tenant.counter - min(others)) * tenant.weight if others else 0.0


@contextmanager
def _only_looking(state: KernelState) -> Iterator[None]:
    """What is estimated inside is not kept: it would be kept from another moment than without."""
    reserved = state.reserved
    with state.outlook.lengths.only_looking():
        yield
    state.reserved = reserved
