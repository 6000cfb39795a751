"""The fairness domain: between whom a tenant's share is divided."""

import pytest

from engine.core.commands import FlowNode
from gateway.flows import flow_of
from telemetry.lineage import Lineage
from tenants.choices import DOMAINS
from tenants.model import ApiKey, Principal, Tenant

LINEAGE = Lineage("acme", "t-1", "r-1", "a-1", "req-1")
NOW = 0  # at which a key was read; nothing here ends


@pytest.mark.parametrize(
    ("domain", "below"),
    [
        ("tenant", ()),
        ("key", ("k1",)),
        ("user", ("nobody",)),
        ("task", ("t-1",)),
        ("run", ("t-1", "r-1")),
    ],
)
def test_a_call_stands_under_its_tenant_divided_as_configured(domain, below):
    key = ApiKey("k1", "acme", "0" * 64)
    flow = flow_of(Principal(Tenant("acme", weight=3.0), key, NOW), LINEAGE, domain)
    assert flow[0] == FlowNode("acme", 3.0)
    assert flow[1:] == tuple(FlowNode(name) for name in below)
    own = Principal(Tenant("acme", domain=domain), key, NOW)
    for configured in DOMAINS:
        assert flow_of(own, LINEAGE, configured)[1:] == flow[1:]


def test_users_are_told_apart_without_being_named():
    principal = Principal(Tenant("acme", domain="user"), ApiKey("k1", "acme", "0" * 64), NOW)
    names = [flow_of(principal, LINEAGE, "tenant", user)[1].name for user in ("ann", "bob", None)]
    assert len(set(names)) == 3
    assert not any("ann" in name for name in names)
    assert flow_of(principal, LINEAGE, "tenant", "ann")[1].name == names[0]
    elsewhere = Principal(
        Tenant("umbrella", domain="user"), ApiKey("k2", "umbrella", "0" * 64), NOW
    )
    assert flow_of(elsewhere, LINEAGE, "tenant", "ann")[1].name != names[0]


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_class_holds_for_whatever_waits_of_the_tenant(domain):
    key = ApiKey("k1", "acme", "0" * 64)
    flow = flow_of(Principal(Tenant("acme", priority=3), key, NOW), LINEAGE, domain, "ann")
    assert [node.priority for node in flow] == [3] * len(flow)
    assert [node.weight for node in flow[1:]] == [1.0] * (len(flow) - 1)
    assert flow_of(Principal(Tenant("acme"), key, NOW), LINEAGE, domain)[-1].priority == 0
