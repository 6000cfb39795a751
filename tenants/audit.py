"""Who changed which tenant or key, when and how: a log in the store, of the last `MOST` changes.

The scripts that make a change write its entry, so that there is no change without one; a log that
is damaged is put aside for it. It holds settings and public ids; secrets and their digests never.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from telemetry.secrets import masked
from tenants.connection import Connection, RecordDamaged
from tenants.settings import InvalidRecord

STREAM = "wm:audit"
MOST = 10_000  # entries that are kept, or some more: the store drops them by the block
DAMAGED = "entry that is damaged"
_LONGEST = 4096  # characters of what a change was; of a longer one only the names are kept
_ID = re.compile(r"\d{1,18}-\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Change:
    """One of them. `at` is Unix seconds by the store's clock; ids grow with it."""

    id: str
    at: int
    by: str
    did: str  # "tenant changed"
    to: str  # the tenant's id or the key's public id
    how: Mapping[str, Any]

    def describe(self) -> dict[str, object]:
        """JSON-ready."""
        return asdict(self)


def entry(by: str, did: str, to: str, how: Mapping[str, object]) -> list[str]:
    """The arguments from which a script writes it, JSON-ready values in `how`."""
    values = {name: _plain(value) for name, value in how.items()}
    if len(json.dumps(values)) > _LONGEST:
        values = {"changed": sorted(values)}
    return [masked(json.dumps({"by": by, "did": did, "to": to, "how": values})), str(MOST)]


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


class Audit:
    """The store's side of it. Everything raises StoreUnavailable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def read(self, most: int, before: str = "") -> list[Change]:
        """The last changes, or the last before the one with the id `before`; the newest first.

        Raises InvalidRecord for what is no id, RecordDamaged.
        """
        if before and not _ID.fullmatch(before):
            raise InvalidRecord("before", "before must be the id of a change")
        if re.fullmatch("0+-0+", before):
            return []  # the store takes no end before which nothing can be
        newest = f"({before}" if before else "+"
        try:
            found = await self._connection.call(
                lambda client: client.xrevrange(STREAM, newest, "-", most)
            )
        except RecordDamaged:
            raise RecordDamaged(
                f"the log of changes is damaged ({STREAM} is no stream): the next change puts it "
                "aside and begins another, or delete it"
            ) from None
        return [_change(name, fields.get("entry", "")) for name, fields in found]


def _change(name: str, text: str) -> Change:
    at = int(name.partition("-")[0]) // 1000
    try:
        told = json.loads(text)
        return Change(name, at, told["by"], told["did"], told["to"], dict(told["how"]))
    except (ValueError, TypeError, KeyError):
        return Change(name, at, "", DAMAGED, "", {})
