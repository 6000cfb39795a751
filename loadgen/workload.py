"""The requests of one run, made from a scenario and a seed alone: the same for every policy."""

from dataclasses import dataclass, replace

import numpy as np

from engine.core.commands import FlowNode
from engine.sim.profile import CostProfile, StepShape
from loadgen.arrivals import arrival_times
from loadgen.data import DataFolder
from loadgen.lengths import LongArray, draw_lengths
from loadgen.scenario import Client, Objectives, Scenario
from loadgen.tables import ScenarioError
from loadgen.traces import read_trace
from telemetry.units import SECOND

Flow = tuple[FlowNode, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One arrival. Times are nanoseconds from the start; deadlines are absolute.

    `output` is the true length, the stop token included. The first `shared` tokens of the prompt
    are those of the beginning number `prefix` of its client. `origin` numbers the request across
    its returns, `attempt` (from 0) the returns.
    """

    arrival: int
    client: int
    prompt: int
    output: int
    first_token_deadline: int | None = None
    deadline: int | None = None
    origin: int = 0
    attempt: int = 0
    prefix: int = 0
    shared: int = 0

    def again(self, arrival: int) -> "Request":
        """The same request sent once more, with as much time for it."""
        later = arrival - self.arrival
        first, last = self.first_token_deadline, self.deadline
        return replace(
            self,
            arrival=arrival,
            first_token_deadline=None if first is None else first + later,
            deadline=None if last is None else last + later,
            attempt=self.attempt + 1,
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """`flows[c]` is the path of client c in the flow tree; `requests` are in order of arrival."""

    flows: tuple[Flow, ...]
    requests: tuple[Request, ...]


def make_workload(
    scenario: Scenario, seed: int, scale: float, data: DataFolder, profile: CostProfile
) -> Workload:
    """The arrivals of `scenario`, rates multiplied by `scale`. Raises ScenarioError."""
    if scenario.trace is not None:
        flows, requests = _replayed(scenario, seed, scale, data, profile)
    else:
        flows, requests = [], list[Request]()
        for client in (one for many in scenario.clients for one in _copies(many)):
            random = np.random.default_rng([seed, len(flows)])
            requests += _requests(client, len(flows), scenario, scale, random, data, profile)
            flows.append(_flow(client))
    requests.sort(key=lambda request: (request.arrival, request.client))
    if not requests:
        raise ScenarioError("the scenario has no arrivals in its duration")
    numbered = (replace(request, origin=i) for i, request in enumerate(requests))
    return Workload(tuple(flows), tuple(numbered))


def _copies(client: Client) -> list[Client]:
    if client.copies == 1:
        return [client]
    return [replace(client, name=f"{client.name}-{i + 1}", copies=1) for i in range(client.copies)]


def _flow(client: Client) -> Flow:
    above = (FlowNode(level.name, level.weight) for level in client.under)
    return (*above, FlowNode(client.name, client.weight, client.priority))


def _requests(
    client: Client,
    number: int,
    scenario: Scenario,
    scale: float,
    random: np.random.Generator,
    data: DataFolder,
    profile: CostProfile,
) -> list[Request]:
    times = arrival_times(client.phases, scenario.duration, scale, random)
    prompts, outputs = _lengths(client, len(times), random, data)
    requests = [
        _with_objectives(
            Request(int(time * SECOND), number, prompt, output),
            client.objectives,
            random,
            profile,
        )
        for time, prompt, output in zip(
            times.tolist(), prompts.tolist(), outputs.tolist(), strict=True
        )
    ]
    prefixes = client.prefixes
    if prefixes is None:
        return requests
    chosen = random.integers(prefixes.count, size=len(requests)).tolist()
    return [
        replace(request, prefix=prefix, shared=min(prefixes.tokens, request.prompt))
        for request, prefix in zip(requests, chosen, strict=True)
    ]


def _lengths(
    client: Client, count: int, random: np.random.Generator, data: DataFolder
) -> tuple[LongArray, LongArray]:
    if client.pairs is not None:
        trace = read_trace(client.pairs, data)
        rows = random.integers(len(trace.times), size=count)
        return trace.prompts[rows], trace.outputs[rows]
    assert client.prompt is not None  # checked by Client
    assert client.output is not None
    return (
        draw_lengths(client.prompt, "prompt", count, random, data),
        draw_lengths(client.output, "output", count, random, data),
    )


def _replayed(
    scenario: Scenario, seed: int, scale: float, data: DataFolder, profile: CostProfile
) -> tuple[list[Flow], list[Request]]:
    replay = scenario.trace
    assert replay is not None  # asked only for scenarios with a trace
    trace = read_trace(replay.file, data, replay.most)
    names = sorted(set(trace.clients), key=lambda name: (len(name), name))
    unknown = sorted(set(replay.weights) - set(names))
    if unknown:
        raise ScenarioError(f"trace.weights names {unknown[0]!r}, which is not in {replay.file}")
    number = {name: i for i, name in enumerate(names)}
    random = np.random.default_rng([seed, len(names)])
    rows = zip(
        (trace.times / scale).tolist(),
        trace.clients,
        trace.prompts.tolist(),
        trace.outputs.tolist(),
        strict=True,
    )
    requests = [
        _with_objectives(
            Request(int(time * SECOND), number[client], prompt, output),
            replay.objectives,
            random,
            profile,
        )
        for time, client, prompt, output in rows
        if time < scenario.duration
    ]
    flows: list[Flow] = [(FlowNode(name, replay.weights.get(name, 1.0)),) for name in names]
    return flows, requests


def _with_objectives(
    request: Request, objectives: Objectives, random: np.random.Generator, profile: CostProfile
) -> Request:
    first, completion = objectives.first_token, objectives.completion
    if first:
        chosen = first[int(random.integers(len(first)))]
        deadline = request.arrival + int(chosen * SECOND)
        request = replace(request, first_token_deadline=deadline)
    if completion:
        chosen = completion[int(random.integers(len(completion)))]
        request = replace(request, deadline=request.arrival + int(chosen * SECOND))
    if objectives.completion_alone:
        seconds = objectives.completion_alone * time_alone(request.prompt, request.output, profile)
        seconds = max(objectives.completion_least, seconds)
        request = replace(request, deadline=request.arrival + int(seconds * SECOND))
    return request


def time_alone(prompt: int, output: int, profile: CostProfile) -> float:
    """Seconds that a request takes on an idle device, its whole prompt in one step.

    Decode steps are linear in their context while alone, so the middle one stands for all.
    """
    pairs = prompt * (prompt + 1) // 2
    first = profile.duration(StepShape(prefill_tokens=prompt, prefill_context=pairs))
    middle = StepShape(decode_sequences=1, context_tokens=prompt + output // 2)
    return (first + (output - 1) * profile.duration(middle)) / SECOND
