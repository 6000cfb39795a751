"""What was cancelled, told to every replica: at once by message, and by a log to who missed one.

The log is short in time and in number; a race's first winner is kept for as long.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Self

import orjson

from telemetry.lineage import Scope
from tenants.connection import Connection, RecordDamaged

log = logging.getLogger(__name__)

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
        """Raises ValueError for what `text` did not write.

        That may be a newer version's, whose further parts may narrow what is meant: half understood
        it would cancel too much.
        """
        try:
            fields = orjson.loads(text)
            scope, spare = fields.pop("scope"), fields.pop("spare")
            return cls(scope=Scope(**scope), spare=spare and Scope(**spare), **fields)
        except (TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"not a cancellation: {error}") from None


class Cancellations:
    """The store's side of it. All but `follow` raise StoreUnavailable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channel = connection.channel(CHANNEL)
        self._room = [self._channel, str(MOST_LOGGED), str(KEPT_MS)]
        self._heard = "0"  # the log's entry heard last

    async def tell(self, cancellation: Cancellation) -> None:
        """Tell every replica that a scope was cancelled."""
        await self._connection.run("cancel", [LOG], [*self._room, cancellation.text()])

    async def commit(self, cancellation: Cancellation) -> Scope:
        """Tell every replica who won a race, if nobody has; returns who has won.

        Raises RecordDamaged if somebody has, and who that is cannot be read.
        """
        scope, winner = cancellation.scope, cancellation.spare
        assert winner is not None
        names = [LOG, f"wm:winners:{scope.tenant}", f"wm:won:{scope.tenant}"]
        text = orjson.dumps(asdict(winner)).decode()
        rest = [cancellation.text(), scope.task or "", text, str(MOST_WINNERS)]
        won: str = await self._connection.run("commit_task", names, [*self._room, *rest])
        try:
            return Scope(**orjson.loads(won))
        except (ValueError, TypeError):
            raise RecordDamaged(f"who has won {scope.task!r} of {scope.tenant}: {won!r}") from None

    async def listeners(self) -> int:
        """Replicas that hear what is told now."""
        counts: list[tuple[str, int]] = await self._connection.call(
            lambda client: client.pubsub_numsub(self._channel)
        )
        return counts[0][1]

    async def follow(self, on_cancellation: Callable[[Cancellation], None]) -> None:
        """Report what anybody tells, for ever, and first what was told lately."""

        def hear(entry: str, text: str) -> None:
            try:
                if _order(entry) <= _order(self._heard):
                    return
                self._heard = entry
                told = Cancellation.of(text)
            except ValueError as error:
                log.warning("a cancellation that another server told cannot be read: %s", error)
            else:
                on_cancellation(told)

        async def catch_up() -> None:
            try:
                missed = await self._connection.call(self._missed)
            except RecordDamaged as error:  # what is told from now on is heard
                log.warning("cancellations that were told before cannot be read: %s", error)
                return
            for entry, fields in missed:
                hear(entry, fields.get("text", ""))

        def hear_now(text: str) -> None:
            entry, _, told = text.partition(" ")
            hear(entry, told)

        await self._connection.listen({self._channel: hear_now}, catch_up)

    async def _missed(self, client: Any) -> list[tuple[str, dict[str, str]]]:
        seconds, _ = await client.time()
        oldest = f"{seconds * 1000 - KEPT_MS}-0"
        start = oldest if _order(oldest) > _order(self._heard) else f"({self._heard}"
        entries: list[tuple[str, dict[str, str]]] = await client.xrange(LOG, min=start)
        return entries


def _order(entry: str) -> tuple[int, int]:
    time, _, number = entry.partition("-")
    return int(time), int(number or 0)
