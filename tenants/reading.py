"""Reads tenants and keys from the store, one or many; a damaged record takes no other with it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from redis.exceptions import ResponseError

from telemetry.units import SECOND
from tenants.connection import Connection, RecordDamaged
from tenants.model import ApiKey, Tenant
from tenants.records import NO_HASH, Faults, damaged_key, damaged_tenant, key_of, tenant_of
from tenants.store_errors import no_key, no_tenant

_PAGE = 500  # records read in one round trip
_GONE = {"": "it is not there"}

T = TypeVar("T")
Record = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """`found` by id, and what to know and do about each of those that are `damaged`."""

    found: Mapping[str, T]
    damaged: Mapping[str, str]


def unix_ns(seconds: str, microseconds: str) -> int:
    """What the store's clock says, in Unix nanoseconds."""
    return int(seconds) * SECOND + int(microseconds) * 1000


async def tenant_record(connection: Connection, tenant_id: str) -> Record:
    """As it is in the store. Raises NotFound, RecordDamaged."""
    record = await _record(connection, "wm:tenant:", tenant_id, damaged_tenant)
    if not record:
        raise no_tenant(tenant_id)
    return record


async def key_record(connection: Connection, public_id: str) -> Record:
    """As it is in the store. Raises NotFound, RecordDamaged."""
    record = await _record(connection, "wm:key:", public_id, damaged_key)
    if not record:
        raise no_key(public_id)
    return record


async def tenants(connection: Connection, after: str, most: int | None) -> Listing[Tenant]:
    """Those whose ids come after `after`, or the first `most` of them, by id."""
    ids: list[str] = await connection.call(
        lambda client: client.zrangebylex(
            "wm:tenants", f"({after}" if after else "-", "+", 0, -1 if most is None else most
        )
    )
    records = await _records(connection, "wm:tenant:", ids)
    # Tenants stay, so that one without a record has lost it.
    return _listing({name: records.get(name, {}) for name in ids}, tenant_of, damaged_tenant)


async def keys(
    connection: Connection, tenant_id: str, after: str, most: int | None
) -> Listing[ApiKey]:
    """The tenant's whose public ids come after `after`, or the first `most` of them, by these.

    Raises NotFound.
    """
    if not await connection.call(lambda client: client.exists(f"wm:tenant:{tenant_id}")):
        raise no_tenant(tenant_id)
    members: list[str] = await connection.call(
        lambda client: client.zrange(f"wm:tenant-keys:{tenant_id}", 0, -1)
    )
    ids = sorted(name for name in members if name > after)[:most]
    return _listing(await _records(connection, "wm:key:", ids), key_of, damaged_key)


def _listing(
    records: Mapping[str, Record | None],
    read: Callable[[str, Record], T],
    damaged: Callable[[str, Faults], RecordDamaged],
) -> Listing[T]:
    found: dict[str, T] = {}
    faulty: dict[str, str] = {}
    for name, record in records.items():
        try:
            if not record:
                raise damaged(name, NO_HASH if record is None else _GONE)
            found[name] = read(name, record)
        except RecordDamaged as error:
            faulty[name] = str(error)
    return Listing(found, faulty)


async def _record(
    connection: Connection,
    prefix: str,
    name: str,
    damaged: Callable[[str, Faults], RecordDamaged],
) -> Record:
    try:
        record: Record = await connection.call(lambda client: client.hgetall(prefix + name))
    except RecordDamaged:
        raise damaged(name, NO_HASH) from None
    return record


async def _records(
    connection: Connection, prefix: str, ids: Sequence[str]
) -> dict[str, Record | None]:
    """The records that exist, in the order of `ids`, read a page at a time; None for no hash."""
    found: dict[str, Record | None] = {}
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        names = [prefix + member for member in page]
        records = await connection.call(partial(read_hashes, names))
        found |= zip(page, records, strict=True)
    return {name: record for name, record in found.items() if record != {}}


async def read_hashes(names: Sequence[str], client: Any) -> list[Record | None]:
    """In one round trip; an empty one for each that is not there, None for what is no hash."""
    async with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hgetall(name)
        answers = await pipeline.execute(raise_on_error=False)
    return [None if _is_no_hash(answer) else answer for answer in answers]


def _is_no_hash(answer: Any) -> bool:
    if not isinstance(answer, ResponseError):
        return False
    if "WRONGTYPE" not in str(answer):
        raise answer
    return True
