"""Usage in the store, by tenant and hour.

Records, all under the prefix `wm:`
    usage:<tenant>:<hour>   hash; fields `<key>/<model>/<column>`; goes away with its age
    usage-hours:<tenant>    sorted set of the hours in which the tenant used anything
    usage-tenants           sorted set of tenants by the last such hour
    usage-file:<file id>    how far a journal file has been added: the fence against a repeat
    spent:<replica>:<window>:<start>    hash; what the calls of one process used of each tenant's
                            budgets in that window, `<tenant>/<measure>` (`tenants.departed`)
    damaged:<record>        what stood in the place of one of these and could not be added to

Hours are counted from the Unix epoch.
"""

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import orjson

from telemetry.usage import COLUMNS, Account, Usage
from tenants.connection import Connection, RecordDamaged
from tenants.ledger.leftovers import Slot, Source, Stretch
from tenants.ledger.spending import spending
from tenants.prices import Price
from tenants.reading import Record

log = logging.getLogger(__name__)

MONEY = "money_nanos"
DAY = 86_400
_PAGE = 200  # tenants or hours read in one round trip
_HOUR = "wm:usage:"
_HOURS = "wm:usage-hours:"
_TENANTS = "wm:usage-tenants"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One account's usage of one model in one hour; money in nanos of the operator's currency."""

    account: Account
    model: str
    hour: int
    usage: Usage
    money_nanos: int


class UsageStore:
    """Everything raises StoreUnavailable. Hours older than `retention_days` are forgotten."""

    def __init__(self, connection: Connection, retention_days: int) -> None:
        self._connection = connection
        self._retention = retention_days * DAY

    async def position(self, file_id: str) -> int:
        """How far a journal file has been added, counted from the end of its header."""
        found = await self._connection.call(lambda client: client.get(_fence(file_id)))
        return int(found or 0)

    async def add(self, source: Source, begin: int, stretch: Stretch, price: Price) -> int:
        """Add a stretch that begins at `begin`; returns how far the file has been added now.

        A repeat changes nothing, and neither does a stretch that begins elsewhere. A record that
        no number can be added to is set aside, and begun anew.
        """
        head = [begin, stretch.end, self._retention, _HOUR, _HOURS, len(COLUMNS) + 1]
        rows = [
            part
            for slot, usage in stretch.sums.items()
            for part in _row(slot, source.model, usage, price)
        ]
        spent = spending(source.writer, stretch, price) if source.writer else []
        arguments = [str(part) for part in (*head, *COLUMNS, MONEY, len(spent), *spent, *rows)]
        places = [_fence(source.file_id), _TENANTS]
        at, *damaged = await self._connection.run("add_usage", places, arguments)
        for record in damaged:
            log.error("the record %s was damaged: it is kept as wm:damaged:%s", record, record)
        return int(at)

    async def forget(self, file_id: str) -> None:
        """The file is gone, so that nothing of it can come again."""
        await self._connection.call(lambda client: client.delete(_fence(file_id)))

    async def tenants(self, since: int) -> list[str]:
        """Those with remembered usage in the hour `since` or after it, by id."""
        found = await self._connection.call(
            lambda client: client.zrangebyscore(_TENANTS, since, "+inf")
        )
        return sorted(found)

    async def rows(self, tenants: Sequence[str], begin: int, end: int) -> AsyncIterator[UsageRow]:
        """The usage of `tenants` in the hours from `begin` up to and without `end`, in this order.

        Raises RecordDamaged for an hour that cannot be read: what is billed is all or nothing.
        """
        for page in _pages(tenants):
            hours = await self._connection.call(partial(_read_hours, page, begin, end))
            places = [
                (tenant, int(hour))
                for tenant, found in zip(page, hours, strict=True)
                for hour in found
            ]
            for few in _pages(places):
                names = [f"{_HOUR}{tenant}:{hour}" for tenant, hour in few]
                records = await self._read(names)
                for name, place, record in zip(names, few, records, strict=True):
                    for row in _rows_of(name, *place, record):
                        yield row

    async def _read(self, names: list[str]) -> list[Record | None]:
        """In one round trip; an empty one for each that is not there, None for what is no hash."""
        told: str = await self._connection.run("read_usage", names, [])
        return [
            None if flat is False else dict(zip(flat[::2], flat[1::2], strict=True)) if flat else {}
            for flat in orjson.loads(told)
        ]


def _pages(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + _PAGE] for start in range(0, len(items), _PAGE))


def _row(slot: Slot, model: str, usage: Usage, price: Price) -> tuple[object, ...]:
    tokens = usage.prompt_tokens, usage.cached_tokens, usage.output_tokens
    amounts = [getattr(usage, column) for column in COLUMNS]
    return (slot.tenant, slot.hour, f"{slot.key}/{model}/", *amounts, price.nanos(*tokens))


async def _read_hours(
    tenants: Sequence[str], begin: int, end: int, client: Any
) -> list[Sequence[str]]:
    """In one round trip, the hours of each in which it used anything."""
    async with client.pipeline(transaction=False) as pipeline:
        for tenant in tenants:
            pipeline.zrangebyscore(_HOURS + tenant, begin, f"({end}")
        found: list[Sequence[str]] = await pipeline.execute()
    return found


def _rows_of(name: str, tenant: str, hour: int, record: Record | None) -> list[UsageRow]:
    """Of the record `name`. Raises RecordDamaged."""
    try:
        return _rows(tenant, hour, record)
    except ValueError:
        raise RecordDamaged(
            f"the record {name} is damaged, and no report that it belongs to can be made until you "
            "put it right or rename it"
        ) from None


def _rows(tenant: str, hour: int, record: Record | None) -> list[UsageRow]:
    """Columns that a newer version has added are passed over. Raises ValueError for damage."""
    if record is None:
        raise ValueError("no hash")
    amounts: dict[tuple[str, str], dict[str, int]] = {}
    for name, amount in record.items():
        key, _, rest = name.partition("/")
        model, _, column = rest.rpartition("/")
        amounts.setdefault((key, model), {})[column] = int(amount)
    return [
        UsageRow(
            Account(tenant, key),
            model,
            hour,
            Usage(**{column: found.get(column, 0) for column in COLUMNS}),
            found.get(MONEY, 0),
        )
        for (key, model), found in sorted(amounts.items())
    ]


def _fence(file_id: str) -> str:
    return f"wm:usage-file:{file_id}"
