"""How tenants and keys are written into the store's hashes: text fields, absent for None."""

from collections.abc import Mapping
from typing import Any

from tenants.model import ApiKey, Tenant
from tenants.settings import SETTINGS


def tenant_fields(tenant: Tenant) -> dict[str, str]:
    """Everything but `created`, which the store sets."""
    fields = {"id": tenant.id}
    for name, setting in SETTINGS.items():
        value = getattr(tenant, name)
        if value is not None:
            fields[name] = setting.write(value)
    return fields


def tenant_of(fields: Mapping[str, str]) -> Tenant:
    settings: dict[str, Any] = {
        name: setting.read(fields[name]) for name, setting in SETTINGS.items() if name in fields
    }
    return Tenant(id=fields["id"], created=int(fields["created"]), **settings)


def key_fields(key: ApiKey) -> dict[str, str]:
    """What the script that creates the key does not set itself."""
    return {
        "tenant": key.tenant,
        "scopes": " ".join(sorted(key.scopes)),
        "models": " ".join(sorted(key.models)),
        "disabled": _flag(key.disabled),
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
        disabled=fields.get("disabled") == "1",
        revoked=fields["revoked"] == "1",
        created=int(fields["created"]),
    )


def _flag(value: bool) -> str:
    return "1" if value else "0"
