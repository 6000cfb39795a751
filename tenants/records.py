"""How tenants and keys are written into the store's hashes: text fields, absent for None."""

from collections.abc import Mapping

from tenants.model import COUNTS, ApiKey, Tenant


def tenant_fields(tenant: Tenant) -> dict[str, str]:
    """Everything but `created`, which the store sets."""
    fields = {"id": tenant.id, "weight": repr(float(tenant.weight))}
    fields["disabled"] = _flag(tenant.disabled)
    for name in (*COUNTS, "admission", "on_infeasible"):
        value = getattr(tenant, name)
        if value is not None:
            fields[name] = str(value)
    return fields


def tenant_of(fields: Mapping[str, str]) -> Tenant:
    return Tenant(
        id=fields["id"],
        weight=float(fields["weight"]),
        disabled=fields["disabled"] == "1",
        created=int(fields["created"]),
        admission=fields.get("admission"),
        on_infeasible=fields.get("on_infeasible"),
        **{name: int(fields[name]) for name in COUNTS if name in fields},
    )


def key_fields(key: ApiKey) -> dict[str, str]:
    """What the script that creates the key does not set itself."""
    return {
        "tenant": key.tenant,
        "scopes": " ".join(sorted(key.scopes)),
        "models": " ".join(sorted(key.models)),
        "revoked": _flag(key.revoked),
    }


def key_of(public_id: str, fields: Mapping[str, str]) -> ApiKey:
    return ApiKey(
        public_id=public_id,
        tenant=fields["tenant"],
        digest=fields["digest"],
        scopes=frozenset(fields["scopes"].split()),
        models=frozenset(fields["models"].split()),
        expires=int(fields["expires"]) if "expires" in fields else None,
        revoked=fields["revoked"] == "1",
        created=int(fields["created"]),
    )


def _flag(value: bool) -> str:
    return "1" if value else "0"
