"""What was cancelled, told to every replica: at once by message, and by a log to who missed one.

The log is short in time and in number; a race's first winner is kept for as long.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Self

import orjson

from telemetry.lineage import Scope
from tenants.connection import Connection

CHANNEL = "wm:cancellations"
LOG = "wm:cancelled"
KEPT_MS = 600_000
MOST_LOGGED = 10_000
MOST_WINNERS = 10_000  # of a tenant


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Everything under `scope` ends but what `spare` covers, which has won. `origin` says so."""

    origin: str
    scope: Scope
    spare: Scope | None = None

    def text(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def of(cls, text: str) -> Self:
        fields = orjson.loads(text)
        spare = fields["spare"]
        return cls(fields["origin"], Scope(**fields["scope"]), spare and Scope(**spare))


class Cancellations:
    """The store's side of it. All but `follow` raise StoreUnavailable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._heard = "0"  # the log's entry heard last

    async def tell(self, cancellation: Cancellation) -> None:
        """Tell every replica that a scope was cancelled."""
        await self._connection.run("cancel", [LOG], [*_ROOM, cancellation.text()])

    async def commit(self, cancellation: Cancellation) -> Scope:
        """Tell every replica who won a race, if nobody has; returns who has won."""
        scope, winner = cancellation.scope, cancellation.spare
        assert winner is not None
        names = [LOG, f"wm:winners:{scope.tenant}", f"wm:won:{scope.tenant}"]
        text = orjson.dumps(asdict(winner)).decode()
        rest = [cancellation.text(), scope.task or "", text, str(MOST_WINNERS)]
        won: str = await self._connection.run("commit_task", names, [*_ROOM, *rest])
        return Scope(**orjson.loads(won))

    async def listeners(self) -> int:
        """Replicas that hear what is told now."""
        counts: list[tuple[str, int]] = await self._connection.call(
            lambda client: client.pubsub_numsub(CHANNEL)
        )
        return counts[0][1]

    async def follow(self, on_cancellation: Callable[[Cancellation], None]) -> None:
        """Report what anybody tells, for ever, and first what was told lately."""

        def hear(entry: str, text: str) -> None:
            if _order(entry) > _order(self._heard):
                self._heard = entry
                on_cancellation(Cancellation.of(text))

        async def catch_up() -> None:
            for entry, fields in await self._connection.call(self._missed):
                hear(entry, fields["text"])

        await self._connection.listen(CHANNEL, lambda text: hear(*text.split(" ", 1)), catch_up)

    async def _missed(self, client: Any) -> list[tuple[str, dict[str, str]]]:
        seconds, _ = await client.time()
        oldest = f"{seconds * 1000 - KEPT_MS}-0"
        start = oldest if _order(oldest) > _order(self._heard) else f"({self._heard}"
        entries: list[tuple[str, dict[str, str]]] = await client.xrange(LOG, min=start)
        return entries


_ROOM = [CHANNEL, str(MOST_LOGGED), str(KEPT_MS)]


def _order(entry: str) -> tuple[int, int]:
    time, _, number = entry.partition("-")
    return int(time), int(number or 0)
