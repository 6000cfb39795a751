"""How tenants and keys are written into the store's hashes: text fields, absent for None.

What a newer version has added to a record is passed over. What cannot be read, or is not there, is
told by field: a record that somebody damaged must not open what a sound one keeps shut.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tenants.connection import RecordDamaged
from tenants.model import ApiKey, InvalidRecord, Tenant
from tenants.settings import SETTINGS, read_flag

NO_HASH = {"": "it is no hash"}
_DIGEST = re.compile("[0-9a-f]{64}", re.ASCII)
_LONGEST = 40  # characters of a damaged value that are quoted

Faults = Mapping[str, str]  # what is wrong with a record, by field; '' stands for all of it


def tenant_fields(tenant: Tenant) -> dict[str, str]:
    """Everything but `created`, which the store sets."""
    fields = {"id": tenant.id}
    for name, setting in SETTINGS.items():
        value = getattr(tenant, name)
        if value is not None:
            fields[name] = setting.write(value)
    return fields


def tenant_of(tenant_id: str, fields: Mapping[str, str]) -> Tenant:
    """Raises RecordDamaged."""
    values, faults = tenant_values(tenant_id, fields)
    if not faults:
        try:
            return Tenant(tenant_id, **values)
        except InvalidRecord as error:
            faults = {error.field: str(error)}
    raise damaged_tenant(tenant_id, faults)


def tenant_values(tenant_id: str, fields: Mapping[str, str]) -> tuple[dict[str, Any], Faults]:
    """All but the id, each for itself, and what is wrong with those that are left out."""
    values, faults = _read(fields, _TENANT_READERS, _TENANT_NEEDS)
    if fields.get("id") != tenant_id:
        faults["id"] = _fault(fields, "id")
    return values, faults


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
    """Raises RecordDamaged."""
    values, faults = key_values(fields)
    if not faults:
        try:
            return ApiKey(public_id, **values)
        except InvalidRecord as error:
            faults = {error.field: str(error)}
    raise damaged_key(public_id, faults)


def key_values(fields: Mapping[str, str]) -> tuple[dict[str, Any], Faults]:
    """All but the public id, each for itself, and what is wrong with those that are left out."""
    return _read(fields, _KEY_READERS, _KEY_READERS.keys() - {"expires", "disabled"})


def damaged_tenant(tenant_id: str, faults: Faults) -> RecordDamaged:
    cure = "create it anew" if "" in faults else "update these settings"
    return RecordDamaged(
        f"the record of the tenant {tenant_id!r} is damaged: {_sum(faults)}; its keys are refused "
        f"until you {cure}"
    )


def damaged_key(public_id: str, faults: Faults) -> RecordDamaged:
    mendable = faults.keys() <= MENDABLE
    cure = "update that, or revoke it" if mendable else "revoke it and create another"
    return RecordDamaged(
        f"the record of the key {public_id!r} is damaged: {_sum(faults)}; it is refused; {cure}"
    )


def _read(
    fields: Mapping[str, str], readers: Mapping[str, Callable[[str], Any]], required: Iterable[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    faults = {name: _fault(fields, name) for name in required if name not in fields}
    for name, reader in readers.items():
        if name in fields:
            try:
                values[name] = reader(fields[name])
            except ValueError:
                faults[name] = _fault(fields, name)
    return values, faults


def _fault(fields: Mapping[str, str], name: str) -> str:
    if name not in fields:
        return f"{name} is missing"
    if name == "digest":  # of a secret
        return "digest is none"
    return f"{name} is {fields[name][:_LONGEST]!r}"


def _sum(faults: Faults) -> str:
    return ", ".join(faults[name] for name in sorted(faults))


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise ValueError("no digest")
    return text


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _flag(value: bool) -> str:
    return "1" if value else "0"


_TENANT_READERS: Mapping[str, Callable[[str], Any]] = {
    "created": int,
    **{name: setting.parse for name, setting in SETTINGS.items()},
}
_TENANT_NEEDS = ("created", *(name for name, setting in SETTINGS.items() if setting.required))
_KEY_READERS: Mapping[str, Callable[[str], Any]] = {
    "tenant": str,
    "digest": _digest,
    "scopes": _words,
    "models": _words,
    "expires": int,
    "disabled": read_flag,
    "revoked": read_flag,
    "created": int,
}
MENDABLE = frozenset({"scopes", "models", "expires", "disabled"})  # what an update may set anew
