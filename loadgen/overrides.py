"""What the table of a policy replaces in its scenario beside the policy itself."""

from dataclasses import replace

from loadgen.scenario import LengthKnowledge, Scenario
from loadgen.tables import ScenarioError, convert
from loadgen.workload import Workload

OVERRIDES = ("lengths", "kernel", "clients")


def length_knowledge(scenario: Scenario, policy: str) -> LengthKnowledge:
    """Whether requests declare their length under that policy. Raises ScenarioError."""
    value = scenario.policies[policy].get("lengths", scenario.lengths)
    known: LengthKnowledge = convert(LengthKnowledge, value, f"policies.{policy}.lengths")
    return known


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
