"""Where a call stands in the flow tree: its tenant, divided further as configured."""

from engine.core.commands import FlowNode
from telemetry.lineage import Lineage
from tenants.model import Principal


def flow_of(principal: Principal, lineage: Lineage, domain: str) -> tuple[FlowNode, ...]:
    """The flow's path. `domain`, one of `tenants.choices.DOMAINS`, says between whom a tenant's

    share is divided equally where the tenant chose nothing itself.
    """
    tenant = FlowNode(principal.tenant.id, principal.tenant.weight)
    match principal.tenant.domain or domain:
        case "key":
            return (tenant, FlowNode(principal.key.public_id))
        case "task":
            return (tenant, FlowNode(lineage.task))
        case "run":
            return (tenant, FlowNode(lineage.task), FlowNode(lineage.run))
    return (tenant,)
