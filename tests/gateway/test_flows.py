"""The fairness domain: between whom a tenant's share is divided."""

import pytest

from engine.core.commands import FlowNode
from gateway.flows import flow_of
from telemetry.lineage import Lineage
from tenants.choices import DOMAINS
from tenants.model import ApiKey, Principal, Tenant

LINEAGE = Lineage("acme", "t-1", "r-1", "a-1", "req-1")


@pytest.mark.parametrize(
    ("domain", "below"),
    [("tenant", ()), ("key", ("k1",)), ("task", ("t-1",)), ("run", ("t-1", "r-1"))],
)
def test_a_call_stands_under_its_tenant_divided_as_configured(domain, below):
    key = ApiKey("k1", "acme", "0" * 64)
    flow = flow_of(Principal(Tenant("acme", weight=3.0), key), LINEAGE, domain)
    assert flow[0] == FlowNode("acme", 3.0)
    assert flow[1:] == tuple(FlowNode(name) for name in below)
    own = Principal(Tenant("acme", domain=domain), key)
    for configured in DOMAINS:
        assert flow_of(own, LINEAGE, configured)[1:] == flow[1:]
