"""Small runs of the production scheduler for tests."""

from engine.core.commands import FlowNode
from engine.core.config import KernelConfig
from engine.sim.profile import A10G_LLAMA2_7B, CostProfile
from engine.sim.tokens import TrueLengths
from loadgen.data import DEFAULT_DATA
from loadgen.simulation import Rules, Simulation
from loadgen.workload import Request, Workload
from policies.config import PolicyConfig
from policies.fairness.config import FairnessConfig
from telemetry.units import SECOND

FCFS = FairnessConfig(name="fcfs")
NO_DATA = f"the public traces are not in {DEFAULT_DATA}"


def kernel(policy: PolicyConfig | None = None, **changes) -> KernelConfig:
    defaults = {
        "num_blocks": 10_000,
        "block_size": 1,
        "max_running": 32,
        "max_step_tokens": 2048,
        "min_chunk": 1,
        "max_context": 10_000,
        "vocab_size": TrueLengths.VOCABULARY,
        "max_queued_requests": 100_000,
        "tenant_queued_requests": 100_000,
        "max_queued_tokens": 10**9,
        "tenant_queued_tokens": 10**9,
        "policy": policy or PolicyConfig(fairness=FCFS),
    }
    return KernelConfig(**(defaults | changes))


def workload(rows: list[tuple[float, str, int, int]], **weights: float) -> Workload:
    """Rows of (arrival in seconds, client, prompt tokens, output tokens)."""
    names = sorted({client for _, client, _, _ in rows})
    requests = [
        Request(int(at * SECOND), names.index(client), prompt, output, origin=i)
        for i, (at, client, prompt, output) in enumerate(sorted(rows, key=lambda row: row[0]))
    ]
    flows = tuple((FlowNode(name, weights.get(name, 1.0)),) for name in names)
    return Workload(flows, tuple(requests))


def simulate(
    rows: list[tuple[float, str, int, int]],
    config: KernelConfig | None = None,
    *,
    profile: CostProfile = A10G_LLAMA2_7B,
    rules: Rules | None = None,
    **weights: float,
) -> Simulation:
    """A finished run."""
    simulation = Simulation(
        workload(rows, **weights), config or kernel(), profile, rules or Rules()
    )
    simulation.run()
    return simulation
