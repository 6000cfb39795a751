"""Where a call stands in the flow tree: its tenant, divided further as configured."""

import hashlib

from engine.core.commands import FlowNode
from telemetry.lineage import Lineage
from tenants.model import Principal


def flow_of(
    principal: Principal, lineage: Lineage, domain: str, user: str | None = None
) -> tuple[FlowNode, ...]:
    """The flow's path. `domain`, one of `tenants.choices.DOMAINS`, says between whom a tenant's

    share is divided equally where the tenant chose nothing itself. `user` is whom the call is made
    for, in the tenant's own words.
    """
    tenant = principal.tenant
    names: tuple[str, ...]
    match tenant.domain or domain:
        case "key":
            names = (principal.key.public_id,)
        case "user":
            names = (_name_of(tenant.id, user),)
        case "task":
            names = (lineage.task,)
        case "run":
            names = (lineage.task, lineage.run)
        case _:
            names = ()
    priority = tenant.priority or 0
    below = (FlowNode(name, priority=priority) for name in names)
    return (FlowNode(tenant.id, tenant.weight, priority), *below)


def _name_of(tenant: str, user: str | None) -> str:
    """Users may be e-mail addresses, and flows are named in events and traces. Calls that name

    nobody are one user together.
    """
    if user is None:
        return "nobody"
    return hashlib.blake2b(f"{tenant}/{user}".encode(), digest_size=8).hexdigest()
