"""One scenario on the live engine and in the simulator with a profile fitted to that engine.

Two tenants of weights 3 and 1 send at rates in that proportion, open loop. At twice what the engine
can serve each sends twice its share, so that both have work waiting, all slots are in use, and
throughput is the engine's and not the callers'; and both wait alike, so that a median over all
requests lies amid them and not in a gap between one tenant's waits and the other's. Both runs get
the same arrivals and the same kernel, and both are read from their events by the same code.
"""

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from engine.core.commands import FlowNode
from engine.core.config import KernelConfig
from engine.sim.profile import CostProfile
from loadgen.arrivals import Phase, arrival_times
from loadgen.limits import Finding
from loadgen.live import LiveEngine, LiveError, LiveModel, Step, drain
from loadgen.profiling import Profiled, Samples, collect, fitted
from loadgen.simulation import Rules, Simulation
from loadgen.workload import Request, Workload
from telemetry.events import Event, SequenceEnded, SequenceStarted, StepPlanned
from telemetry.units import SECOND

FLOWS = ((FlowNode("gold", 3.0),), (FlowNode("bronze", 1.0),))
PROMPTS = (32, 256)
OUTPUTS = (16, 128)
RUNNING = 32
CROWD = 400  # requests by which the capacity is found
THROUGHPUT_LIMIT = 0.05  # largest deviation of the simulator from the engine
TTFT_LIMIT = 0.15
HEADER = (
    *("run", "requests", "seconds", "mean running", "steps"),
    *("tokens/s", "p50 TTFT", *(f"{flow[0].name}'s" for flow in FLOWS)),
)
HEAD_START = 0.2  # seconds between the start of the run and the first possible arrival

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. Throughput in output tokens a second, from the first arrival to the last end."""

    seconds: float
    throughput: float
    ttft: float  # median seconds
    ttft_by_tenant: dict[str, float]
    running: float  # mean over steps
    steps: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same arrivals on the live engine and simulated; ratios are simulated over live."""

    seed: int
    requests: int
    live: Figures
    simulated: Figures

    @property
    def throughput(self) -> float:
        return self.simulated.throughput / self.live.throughput

    @property
    def ttft(self) -> float:
        return self.simulated.ttft / self.live.ttft

    def ttft_of(self, tenant: str) -> float:
        return self.simulated.ttft_by_tenant[tenant] / self.live.ttft_by_tenant[tenant]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `rate` requests a second, or None for `load` times what can be served."""

    seconds: float  # in which requests arrive
    load: float
    rate: float | None
    repeat: int
    profile_seconds: float  # in all


@dataclass(frozen=True, slots=True)
class Outcome:
    """The rate that was used, the profile of all parts, and the comparisons."""

    rate: float
    profiled: Profiled
    comparisons: list[Comparison]


class Timeline:
    """When each request got its first token and ended. Sequences are numbered in their order."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._tokens = 0
        self._running: list[int] = []

    def fold(self, events: list[Event]) -> None:
        """Take in events, in order."""
        for event in events:
            match event:
                case SequenceStarted():
                    self._first[event.sequence] = event.now
                case SequenceEnded():
                    self._ended[event.sequence] = event.now
                    self._tokens += event.output_tokens
                case StepPlanned():
                    self._running.append(event.running)

    def figures(self, workload: Workload, start: int) -> Figures:
        """Of a run that began at the instant `start` and is over. LiveError if work is left."""
        requests = workload.requests
        if len(self._ended) < len(requests) or len(self._first) < len(requests):
            raise LiveError(f"only {len(self._ended)} of {len(requests)} requests were answered")
        waits: dict[str, list[float]] = {}
        for number, request in zip(sorted(self._first), requests, strict=True):
            tenant = workload.flows[request.client][0].name
            wait = (self._first[number] - start - request.arrival) / SECOND
            waits.setdefault(tenant, []).append(wait)
        span = max(self._ended.values()) - start - requests[0].arrival
        return Figures(
            seconds=span / SECOND,
            throughput=self._tokens * SECOND / span,
            ttft=median(wait for many in waits.values() for wait in many),
            ttft_by_tenant={tenant: median(many) for tenant, many in sorted(waits.items())},
            running=float(np.mean(self._running)),
            steps=len(self._running),
        )


def make_workload(rate: float, seconds: float, seed: int, rate_to: float | None = None) -> Workload:
    """Poisson arrivals at `rate` a second, shared among tenants by weight, with uniform lengths.

    With `rate_to` the rate climbs to that in a straight line.
    """
    total = sum(flow[0].weight for flow in FLOWS)
    requests = []
    for client, (tenant,) in enumerate(FLOWS):
        share = tenant.weight / total
        phase = Phase(share * rate, rate_to=None if rate_to is None else share * rate_to)
        random = np.random.default_rng([seed, client])
        times = arrival_times((phase,), seconds, 1.0, random)
        prompts = random.integers(PROMPTS[0], PROMPTS[1] + 1, len(times))
        outputs = random.integers(OUTPUTS[0], OUTPUTS[1] + 1, len(times))
        requests += [
            Request(int(time * SECOND), client, int(prompt), int(output))
            for time, prompt, output in zip(times, prompts, outputs, strict=True)
        ]
    if not requests:
        raise LiveError(f"no request arrives in {seconds:g} s at {rate:g} a second")
    requests.sort(key=lambda request: (request.arrival, request.client))
    return Workload(FLOWS, tuple(replace(r, origin=i) for i, r in enumerate(requests)))


def kernel_for(kernel: KernelConfig, running: int = RUNNING) -> KernelConfig:
    """The served kernel with so many slots, and room for all that waits.

    No prompt repeats another, so the prefix cache would only take part in choosing blocks.
    """
    many = 1_000_000
    return replace(
        kernel,
        max_running=running,
        prefix_cache=False,
        max_queued_requests=many,
        max_queued_tokens=many * PROMPTS[1],
        tenant_queued_requests=many,
        tenant_queued_tokens=many * PROMPTS[1],
    )


def simulate(workload: Workload, kernel: KernelConfig, profile: CostProfile) -> Figures:
    """The run in virtual time; output lengths are declared, as they are on the live engine."""
    timeline = Timeline()
    Simulation(workload, kernel, profile, Rules(), timeline.fold).run()
    return timeline.figures(workload, 0)


def capacity(kernel: KernelConfig, profile: CostProfile) -> float:
    """Requests a second that the simulated engine serves with work always waiting."""
    crowd = at_once(CROWD, seed=0)
    return CROWD / simulate(crowd, kernel, profile).seconds


def at_once(count: int, seed: int) -> Workload:
    """So many requests, all of which arrive at the beginning."""
    crowd = make_workload(rate=100.0, seconds=0.02 * count, seed=seed)
    first = tuple(replace(one, arrival=0) for one in crowd.requests[:count])
    return Workload(crowd.flows, first)


async def run_live(
    workload: Workload, kernel: KernelConfig, model: LiveModel
) -> tuple[Figures, list[Step]]:
    """The run on the real engine, at wall time, and its steps."""
    timeline = Timeline()
    async with LiveEngine(model, kernel, timeline.fold) as engine:
        random = np.random.default_rng(1)
        prompts = [
            random.integers(0, kernel.vocab_size, request.prompt).astype(np.int32)
            for request in workload.requests
        ]
        start = engine.clock.now() + int(HEAD_START * SECOND)
        readers = []
        for request, prompt in zip(workload.requests, prompts, strict=True):
            wait = start + request.arrival - engine.clock.now()
            await asyncio.sleep(max(0, wait) / SECOND)
            generation = engine.generate(prompt, request.output, workload.flows[request.client])
            readers.append(asyncio.create_task(drain(generation)))
        await asyncio.gather(*readers)
    return timeline.figures(workload, start), engine.watch.steps


def compare(model: LiveModel, plan: Plan, report: Report) -> Outcome:
    """One comparison a seed.

    Parts of the profile are measured before, between and after the live runs, and each run is
    simulated with the two parts next to it: a machine whose speed drifts from minute to minute is
    not to be taken for an error of the simulator.
    """
    kernel, count = kernel_for(model.kernel), plan.repeat + 1
    parts: list[Samples] = []

    def profile_part() -> None:
        report(f"profile, part {len(parts) + 1} of {count}")
        parts.append(Samples())
        collect(model, plan.profile_seconds / count, parts[-1])

    profile_part()
    rate = plan.rate or plan.load * capacity(kernel, fitted(model, parts[0]).fit.profile)
    comparisons = []
    for seed in range(1, count):
        load = make_workload(rate, plan.seconds, seed)
        report(f"live run {seed} of {plan.repeat}: {len(load.requests)} requests")
        live, _ = asyncio.run(run_live(load, kernel, model))
        profile_part()
        profiled = fitted(model, parts[-2].with_those_of(parts[-1]))
        simulated = simulate(load, kernel, profiled.fit.profile)
        comparisons.append(Comparison(seed, len(load.requests), live, simulated))
    whole = Samples()
    for part in parts:
        whole = whole.with_those_of(part)
    return Outcome(rate, fitted(model, whole), comparisons)


def findings(comparisons: list[Comparison]) -> list[Finding]:
    """Medians of the deviations, against their limits."""
    return [
        _finding("throughput", [one.throughput for one in comparisons], THROUGHPUT_LIMIT),
        _finding("p50 TTFT", [one.ttft for one in comparisons], TTFT_LIMIT),
        *(
            _finding(f"{name}'s", [one.ttft_of(name) for one in comparisons], TTFT_LIMIT)
            for name in sorted(flow[0].name for flow in FLOWS)
        ),
    ]


def _finding(name: str, ratios: list[float], limit: float) -> Finding:
    deviation = 100 * abs(median(ratios) - 1)
    note = f"simulated/live {median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
    return Finding(f"{name}, deviation", deviation, 100 * limit, "%", note=note)


def figures(comparison: Comparison) -> dict[str, Any]:
    """JSON-ready."""
    return {
        **asdict(comparison),
        "throughput_ratio": comparison.throughput,
        "ttft_ratio": comparison.ttft,
    }


def rows(comparisons: list[Comparison]) -> list[tuple[object, ...]]:
    """For a table under HEADER: two rows a comparison."""
    return [
        (
            *(f"{one.seed}, {name}", one.requests, f"{run.seconds:.1f}", f"{run.running:.1f}"),
            *(run.steps, f"{run.throughput:.1f}", f"{run.ttft:.2f} s"),
            *(f"{run.ttft_by_tenant[flow[0].name]:.2f} s" for flow in FLOWS),
        )
        for one in comparisons
        for name, run in (("live", one.live), ("simulated", one.simulated))
    ]
