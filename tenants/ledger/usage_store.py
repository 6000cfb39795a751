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
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from telemetry.usage import Account, Usage
from tenants.connection import Connection, RecordDamaged
from tenants.ledger.leftovers import COLUMNS, Slot, Source, Stretch
from tenants.ledger.spending import spending
from tenants.prices import Price
from tenants.reading import Record, read_hashes

log = logging.getLogger(__name__)

MONEY = "money_nanos"
DAY = 86_400
_PAGE = 200  # hours read in one round trip
_HOUR = "wm:usage:"
_HOURS = "wm:usage-hours:"
_TENANTS = "wm:usage-tenants"


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

    async def tenants(self) -> list[str]:
        """Those with usage that is remembered, by id."""
        found = await self._connection.call(lambda client: client.zrange(_TENANTS, 0, -1))
        return sorted(found)

    async def rows(self, tenant: str, begin: int, end: int) -> AsyncIterator[UsageRow]:
        """The tenant's usage in the hours from `begin` up to and without `end`, in their order.

        Raises RecordDamaged for an hour that cannot be read: what is billed is all or nothing.
        """
        hours = await self._connection.call(
            lambda client: client.zrangebyscore(_HOURS + tenant, begin, f"({end}")
        )
        for start in range(0, len(hours), _PAGE):
            page = hours[start : start + _PAGE]
            records = await self._connection.call(partial(_read, tenant, page))
            for hour, record in zip(page, records, strict=True):
                try:
                    rows = _rows(tenant, int(hour), record)
                except ValueError:
                    raise RecordDamaged(
                        f"the record {_HOUR}{tenant}:{hour} is damaged, and no report that it "
                        "belongs to can be made until you put it right or rename it"
                    ) from None
                for row in rows:
                    yield row


def _row(slot: Slot, model: str, usage: Usage, price: Price) -> tuple[object, ...]:
    tokens = usage.prompt_tokens, usage.cached_tokens, usage.output_tokens
    amounts = [getattr(usage, column) for column in COLUMNS]
    return (slot.tenant, slot.hour, f"{slot.key}/{model}/", *amounts, price.nanos(*tokens))


async def _read(tenant: str, hours: Sequence[str], client: Any) -> list[Record | None]:
    return await read_hashes([f"{_HOUR}{tenant}:{hour}" for hour in hours], client)


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
