"""What the table of a policy replaces in its scenario beside the policy itself."""

from dataclasses import asdict, replace
from typing import Any

from loadgen.device import Device
from loadgen.scenario import LengthKnowledge, Scenario
from loadgen.tables import ScenarioError, build, convert
from loadgen.workload import Workload

OVERRIDES = ("lengths", "kernel", "device", "clients")


def length_knowledge(scenario: Scenario, policy: str) -> LengthKnowledge:
    """Whether requests declare their length under that policy. Raises ScenarioError."""
    value = scenario.policies[policy].get("lengths", scenario.lengths)
    known: LengthKnowledge = convert(LengthKnowledge, value, f"policies.{policy}.lengths")
    return known


def device_of(scenario: Scenario, policy: str) -> Device:
    """The device that runs that policy: keys of its own before the scenario's."""
    where = f"policies.{policy}.device"
    changes: dict[str, Any] = convert(dict, scenario.policies[policy].get("device", {}), where)
    return build(Device, {**_set(scenario.device), **changes}, where)


def _set(device: Device) -> dict[str, Any]:
    return {name: value for name, value in asdict(device).items() if value is not None}


def senders_only(workload: Workload, scenario: Scenario, policy: str) -> Workload:
    """The requests of the clients that send under that policy: all, unless it names some.

    Everybody's arrivals stay what they were. Raises ScenarioError.
    """
    rules = scenario.policies[policy]
    if "clients" not in rules:
        return workload
    where = f"policies.{policy}.clients"
    names: tuple[str, ...] = convert(tuple[str, ...], rules["clients"], where)
    known = {flow[-1].name for flow in workload.flows}
    for name in names:
        if name not in known:
            raise ScenarioError(f"{where} names {name!r}, which is no client")
    sent = tuple(r for r in workload.requests if workload.flows[r.client][-1].name in names)
    if not sent:
        raise ScenarioError(f"{where}: none of these has arrivals in the duration")
    return replace(workload, requests=sent)
