"""The kernel configuration of a simulated run, from the tables of a scenario."""

from dataclasses import fields
from typing import Any

from engine.core.config import KernelConfig
from engine.sim.profile import HostLink
from engine.sim.tokens import TrueLengths
from loadgen.overrides import OVERRIDES
from loadgen.scenario import Scenario
from loadgen.tables import ScenarioError, build, convert
from policies.config import PolicyConfig

MANY = 1_000_000  # open-loop suites have no queue caps unless they set some
OWN = ("num_blocks", "vocab_size", "policy", "host_block_ns", "host_overlap")  # decided here


def kernel_config(scenario: Scenario, policy: str, link: HostLink) -> KernelConfig:
    """The kernel of `scenario` under the policy table of that name. Raises ScenarioError.

    A policy table holds fields of the policy configuration; what else it may hold is in
    `loadgen.overrides`.
    """
    rules = dict(scenario.policies[policy])
    table: dict[str, Any] = {**scenario.kernel, **_table(rules.get("kernel", {}), policy)}
    for name in OVERRIDES:
        rules.pop(name, None)
    where = f"policies.{policy}"
    block = convert(int, table.get("block_size", 16), "kernel.block_size")
    tokens = convert(int, table.pop("kv_tokens", None), "kernel.kv_tokens")
    host_tokens = convert(int, table.pop("host_tokens", 0), "kernel.host_tokens")
    if block < 1 or tokens < block:
        raise ScenarioError("kernel.kv_tokens must hold at least one block of kernel.block_size")
    for name in OWN:
        if name in table:
            raise ScenarioError(f"kernel.{name} follows from other keys and cannot be set")
    defaults = {
        "max_context": tokens,
        "max_queued_requests": MANY,
        "max_queued_tokens": MANY * 1000,
        "tenant_queued_requests": MANY,
        "tenant_queued_tokens": MANY * 1000,
        "prefix_cache": False,  # no two simulated prompts share a prefix
    }
    known = {field.name for field in fields(KernelConfig)}
    defaults = {name: value for name, value in defaults.items() if name in known}
    derived = {
        "num_blocks": tokens // block,
        "vocab_size": TrueLengths.VOCABULARY,
        "policy": build(PolicyConfig, rules, where),
        "host_blocks": host_tokens // block,
        "host_block_ns": 1e9 * block * link.bytes_per_token / link.bytes_per_second,
        "host_overlap": link.overlap,
    }
    return build(KernelConfig, {**defaults, **table, **derived}, "kernel")


def _table(value: Any, policy: str) -> dict[str, Any]:
    table: dict[str, Any] = convert(dict, value, f"policies.{policy}.kernel")
    return table
