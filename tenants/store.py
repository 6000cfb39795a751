"""Tenants and keys in Redis. Every change of several steps is one Lua script, run atomically.

Records, all under the prefix `wm:`
    schema              version of this layout
    admin-key           hash, the key of the admin API
    tenants             sorted set of tenant ids
    tenant:<id>         hash, one tenant
    key:<public id>     hash, one key; goes away a while after the key's end
    tenant-keys:<id>    sorted set of the tenant's public ids, scored by when they go away
    audit               stream, the last changes of all this and by whom (`tenants.audit`)
    limits:<id>         what was used of the tenant's limits and who leases what (`tenants.leases`)
    call:<id>:<hash>    hash, one call under an idempotency key (`tenants.calls`)
    calls:<id>, call-bytes:<id>  sorted set of kept answers, by when they go; hash of their sizes
    cancelled           stream of late cancellations (`tenants.cancellations`)
    winners:<id>, won:<id>  hash of who won the tenant's late races; their tasks, by when they go
    servers             sorted set of servers, scored by when they were last seen
and the channels
    changes             what keys of a cache are stale (`tenants.changes`)
    cancellations, seen  what was cancelled; which server is there (`tenants.servers`)
    questions, answers:<server>  what servers ask each other (`tenants.questions`)
"""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tenants import audit, keys, reading
from tenants.admin_key import AdminKey
from tenants.calls import Calls
from tenants.cancellations import Cancellations
from tenants.changes import CHANNEL, Change, read_change
from tenants.connection import Connection, RecordDamaged, StoreError, StoreUnavailable
from tenants.model import INFERENCE, KEY_SETS, ApiKey, InvalidRecord, Principal, Tenant, models_of
from tenants.reading import Listing
from tenants.records import (
    damaged_key,
    damaged_tenant,
    key_fields,
    key_of,
    key_values,
    tenant_fields,
    tenant_of,
    tenant_values,
)
from tenants.settings import SETTINGS
from tenants.store_errors import (
    AlreadyExists,
    KeyNotActive,
    NotFound,
    SchemaMismatch,
    check_answer,
    created_of,
    no_key,
)

__all__ = [
    "AlreadyExists",
    "IssuedKey",
    "KeyNotActive",
    "NotFound",
    "RecordDamaged",
    "SchemaMismatch",
    "Store",
    "StoreError",
    "StoreUnavailable",
]

SCHEMA = 1
_KEY_SETTINGS = frozenset({*KEY_SETS, "expires", "disabled"})
_REMEMBERED = 90 * 86_400  # seconds a dead key is kept, to tell its callers why it is refused
_WRITE_ATTEMPTS = 20  # each failed one means that another writer got through


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key. `raw` is shown to its owner once and exists nowhere else."""

    raw: str = field(repr=False)
    key: ApiKey


class Store:
    """The tenants' side of the store; create it with `Store.connect`. Bound to one event loop."""

    def __init__(self, connection: Connection, actor: str = "unknown") -> None:
        self._connection = connection
        self._actor = actor
        self.admin_key = AdminKey(connection, actor)
        self.audit = audit.Audit(connection)
        self.calls = Calls(connection)
        self.cancellations = Cancellations(connection)

    @classmethod
    async def connect(cls, url: str, patience: float = 5.0) -> "Store":
        """Reach the server at `url` within `patience` seconds and check the layout's version.

        Raises StoreError for a URL that is none, StoreUnavailable, SchemaMismatch.
        """
        store = cls(Connection(url))
        try:
            await store._connection.reach(patience)
            await store._check_layout()
        except StoreError:
            await store.close()
            raise
        return store

    def acting_as(self, actor: str) -> "Store":
        """The same store, whose log of changes names `actor` as who makes them."""
        return Store(self._connection, actor)

    @property
    def connection(self) -> Connection:
        """For what else is kept in the same store."""
        return self._connection

    async def close(self) -> None:
        await self._connection.close()

    async def check(self) -> bool:
        """Whether the store had been emptied; it is marked as ours again. Raises StoreUnavailable

        when it is away or refuses scripts or writes, also where there is nothing to write,
        and SchemaMismatch when a newer Watermaster has changed its layout.
        """
        marked = await self._connection.run("check", ["wm:schema"], [str(SCHEMA)])
        await self._check_layout()
        return bool(marked)

    async def _check_layout(self) -> None:
        found = await self._connection.call(lambda client: client.get("wm:schema"))
        if found is None:
            await self._connection.call(lambda client: client.set("wm:schema", SCHEMA, nx=True))
            found = await self._connection.call(lambda client: client.get("wm:schema"))
        if found != str(SCHEMA):
            raise SchemaMismatch(
                f"the store's layout has version {found}, this Watermaster understands {SCHEMA}: "
                "upgrade Watermaster, or point it to another store"
            )

    async def create_tenant(self, tenant: Tenant) -> Tenant:
        """Add a tenant; returns it with its time of creation. Raises AlreadyExists."""
        given = {name: getattr(tenant, name) for name in SETTINGS}
        how = {name: value for name, value in given.items() if value is not None}
        created = await self._put(tenant, "", "tenant created", how)
        if not created:
            raise AlreadyExists(f"the tenant {tenant.id!r} exists already")
        return replace(tenant, created=int(created))

    async def ensure_tenant(self, tenant: Tenant) -> Tenant:
        """The tenant of that id as it stands, or else `tenant`, created."""
        try:
            return await self.create_tenant(tenant)
        except AlreadyExists:
            return await self.get_tenant(tenant.id)

    async def get_tenant(self, tenant_id: str) -> Tenant:
        """Raises NotFound, RecordDamaged."""
        return tenant_of(tenant_id, await reading.tenant_record(self._connection, tenant_id))

    async def list_tenants(self, after: str = "", most: int | None = None) -> Listing[Tenant]:
        """All tenants whose ids come after `after`, or the first `most` of them, by id."""
        return await reading.tenants(self._connection, after, most)

    async def update_tenant(self, tenant_id: str, **changes: Any) -> Tenant:
        """Change the named fields of a tenant; None leaves it to the server.

        Raises NotFound, InvalidRecord for a field that does not exist or a bad value, and
        RecordDamaged if others than these are damaged.
        """
        for name in changes:
            if name in {"id", "created"} or name not in Tenant.__dataclass_fields__:
                raise InvalidRecord(name, f"{name!r} is not a setting of a tenant")
        for _ in range(_WRITE_ATTEMPTS):
            record = await reading.tenant_record(self._connection, tenant_id)
            values, faults = tenant_values(tenant_id, record)
            if faults.keys() - changes.keys() - {"id", "created"}:  # these are written anyway
                raise damaged_tenant(tenant_id, faults)
            tenant = Tenant(tenant_id, **{**values, **changes})
            expected = record.get("version", "")
            created = await self._put(tenant, expected, "tenant changed", changes)
            if created:
                return replace(tenant, created=int(created))
        raise StoreUnavailable(f"too many others are changing the tenant {tenant_id!r}")

    async def disable_tenant(self, tenant_id: str) -> Tenant:
        """Refuse all its keys from now on, within a second on every replica. Raises NotFound."""
        return await self.update_tenant(tenant_id, disabled=True)

    async def create_key(
        self,
        tenant_id: str,
        *,
        scopes: Iterable[str] = (INFERENCE,),
        models: Iterable[str] = (),
        expires: int | None = None,
    ) -> IssuedKey:
        """Issue a key. `models` empty allows all; `expires` is Unix seconds.

        Raises NotFound, InvalidRecord.
        """
        raw, public_id, digest = keys.new_key()
        key = ApiKey(public_id, tenant_id, digest, frozenset(scopes), models_of(models), expires)
        end = "" if expires is None else str(expires)
        how = {"tenant": tenant_id, "scopes": key.scopes, "models": key.models, "expires": expires}
        noted = audit.entry(self._actor, "key issued", public_id, how)
        answer = await self._connection.run(
            "create_key",
            [*_places(tenant_id, public_id), audit.STREAM],
            [public_id, digest, end, str(_REMEMBERED), *noted, *_flat(key_fields(key))],
        )
        check_answer(answer, key)
        return IssuedKey(raw, replace(key, created=created_of(answer)))

    async def get_key(self, public_id: str) -> ApiKey:
        """Raises NotFound, RecordDamaged."""
        return key_of(public_id, await reading.key_record(self._connection, public_id))

    async def list_keys(
        self, tenant_id: str, after: str = "", most: int | None = None
    ) -> Listing[ApiKey]:
        """The tenant's keys whose public ids come after `after`, or the first `most` of them.

        By these ids, dead ones included while remembered. Raises NotFound.
        """
        return await reading.keys(self._connection, tenant_id, after, most)

    async def revoke_key(self, public_id: str) -> ApiKey:
        """End a key at once, within a second on every replica. Raises NotFound.

        One whose record is damaged is forgotten; what could be read of it is returned.
        """
        try:
            key, damaged = await self.get_key(public_id), False
        except RecordDamaged:
            key, damaged = await self._remains_of_key(public_id), True
        noted = audit.entry(self._actor, "key revoked", public_id, {"tenant": key.tenant})
        found = await self._connection.run(
            "forget_key" if damaged else "revoke_key",
            [*_places(key.tenant, public_id)[1:], audit.STREAM],
            [public_id, str(_REMEMBERED), *noted],
        )
        if not found:
            raise no_key(public_id)
        return replace(key, revoked=True)

    async def _remains_of_key(self, public_id: str) -> ApiKey:
        try:
            values, _ = key_values(await reading.key_record(self._connection, public_id))
        except RecordDamaged:
            values = {}
        return ApiKey(public_id, values.get("tenant", ""), "", created=values.get("created", 0))

    async def update_key(self, public_id: str, **changes: Any) -> ApiKey:
        """Change `scopes`, `models`, `expires` (None: never) or `disabled` of a live key.

        Raises NotFound, KeyNotActive, InvalidRecord for another field or a bad value, and
        RecordDamaged if others than these are damaged.
        """
        for name in changes:
            if name not in _KEY_SETTINGS:
                raise InvalidRecord(name, f"{name!r} is not a setting of a key")
        values, faults = key_values(await reading.key_record(self._connection, public_id))
        if faults.keys() - changes.keys():
            raise damaged_key(public_id, faults)
        sets = {n: KEY_SETS[n](v) for n, v in changes.items() if n in KEY_SETS}
        key = ApiKey(public_id, **values | changes | sets)
        ends = "same" if "expires" not in changes else str(key.expires or "")
        noted = audit.entry(
            self._actor, "key changed", public_id, {"tenant": key.tenant, **changes}
        )
        named = {name: text for name, text in key_fields(key).items() if name in changes}
        answer = await self._connection.run(
            "update_key",
            [*_places(key.tenant, public_id)[1:], audit.STREAM],
            [public_id, ends, str(_REMEMBERED), *noted, *_flat(named)],
        )
        check_answer(answer, key)
        return key

    async def rotate_key(self, public_id: str, overlap: int = 0) -> IssuedKey:
        """Issue a key with the same rights and end; the old one lives `overlap` seconds more.

        Rotated again while it does, it passes on the end that it had before.
        Raises NotFound, KeyNotActive, InvalidRecord.
        """
        if not 0 <= overlap <= _REMEMBERED:
            raise InvalidRecord("overlap", f"overlap must be from 0 to {_REMEMBERED} seconds")
        old = await self.get_key(public_id)
        raw, new_id, digest = keys.new_key()
        how = {"tenant": old.tenant, "new": new_id, "overlap": overlap}
        noted = audit.entry(self._actor, "key rotated", public_id, how)
        answer = await self._connection.run(
            "rotate_key",
            [f"wm:key:{public_id}", *_places(old.tenant, new_id)[1:], audit.STREAM],
            [public_id, new_id, digest, str(overlap), str(_REMEMBERED), *noted],
        )
        check_answer(answer, old)
        created, _, ends = answer.partition(" ")
        key = replace(
            old,
            public_id=new_id,
            digest=digest,
            created=created_of(created),
            expires=int(ends) if ends else None,
        )
        return IssuedKey(raw, key)

    async def follow(self, on_change: Callable[[Change], None]) -> None:
        """Report the changes that anybody makes, for ever.

        Those made while the connection is broken are missed, so caches need a short life as well.
        """
        await self._connection.listen({CHANNEL: lambda text: on_change(read_change(text))})

    async def lookup(self, public_id: str) -> Principal | None:
        """A key and its tenant as they are at one instant; None when there is no such key.

        Raises StoreUnavailable, of which RecordDamaged concerns this key or its tenant alone.
        """
        found = await self._connection.run("lookup", [f"wm:key:{public_id}"], ["wm:tenant:"])
        if not found:
            return None
        key, tenant, time = found
        held = key_of(public_id, _pairs(key))
        return Principal(tenant_of(held.tenant, _pairs(tenant)), held, reading.unix_ns(*time))

    async def _put(self, tenant: Tenant, expected: str, did: str, how: dict[str, Any]) -> str:
        noted = audit.entry(self._actor, did, tenant.id, how)
        fields = dict.fromkeys(SETTINGS, "") | tenant_fields(tenant)
        created: str = await self._connection.run(
            "put_tenant",
            [f"wm:tenant:{tenant.id}", "wm:tenants", audit.STREAM],
            [tenant.id, expected, secrets.token_hex(8), *noted, *_flat(fields)],
        )
        return created


def _places(tenant_id: str, public_id: str) -> list[str]:
    """The records of a tenant, of a key of it, and the index of its keys."""
    return [f"wm:tenant:{tenant_id}", f"wm:key:{public_id}", f"wm:tenant-keys:{tenant_id}"]


def _flat(fields: dict[str, str]) -> list[str]:
    return [part for pair in fields.items() for part in pair]


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
