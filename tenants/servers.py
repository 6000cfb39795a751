"""Which servers are on the store, and which were lately: each is seen there every few seconds.

What one alone knew is lost with it, and that it was there tells others so.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from tenants.connection import Connection, StoreUnavailable
from tenants.replica import place_of

SERVERS = "wm:servers"
SEEN = "wm:seen"  # the channel of signs of life
SEEN_SECONDS = 5.0  # between a server's signs of life
THERE_MS = 15_000  # since the last one, while a server is taken to be there
KEPT_MS = 600_000  # since then, until one that is gone is forgotten
MOST_SERVERS = 1000


@dataclass(frozen=True, slots=True)
class Roll:
    """Names of servers: those that are `there`, though perhaps out of touch, and those `gone`."""

    there: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()

    @classmethod
    def of(cls, now: str, seen: list[str]) -> "Roll":
        """As the scripts tell, the last seen last. Whose place another has taken since is gone."""
        ages = {
            name: int(now) - int(float(instant))
            for name, instant in zip(seen[::2], seen[1::2], strict=True)
        }
        holders = {place_of(name): name for name in ages}
        there = frozenset(name for name in holders.values() if ages[name] < THERE_MS)
        kept = frozenset(name for name, age in ages.items() if age < KEPT_MS)
        return cls(there, kept - there)

    def __contains__(self, name: str) -> bool:
        return name in self.there or name in self.gone

    def without(self, names: Collection[str]) -> "Roll":
        """All the others."""
        return Roll(self.there.difference(names), self.gone.difference(names))


class Servers:
    """The store's list of them, for the one called `own`.

    `roll` is as of its last sign of life, and with whom it has heard of since.
    """

    def __init__(self, connection: Connection, own: str) -> None:
        self.own = own
        self.roll = Roll()
        self._connection = connection

    @property
    def alone(self) -> bool:
        """Whether no other is there, as far as the store tells; not before it has told."""
        return self.roll.there == {self.own}

    async def follow(self) -> None:
        """Hear of others as soon as they are there, for ever."""
        await self._connection.listen({self._connection.channel(SEEN): self._hear})

    def _hear(self, name: str) -> None:
        if name != self.own:
            self.roll = Roll(self.roll.there | {name}, self.roll.gone - {name})

    async def run(self) -> None:
        """Be seen, for ever; cancel it to end."""
        while True:
            await self._be_seen(0)
            await asyncio.sleep(SEEN_SECONDS)

    async def leave(self) -> None:
        """Be gone for the others at once, after `run` has ended."""
        await self._be_seen(THERE_MS)

    async def _be_seen(self, age: int) -> None:
        seen = self._connection.channel(SEEN)
        rest = [self.own, str(age), str(KEPT_MS), str(MOST_SERVERS), seen]
        try:
            now, ages = await self._connection.run("be_seen", [SERVERS], rest)
        except StoreUnavailable:
            return  # whoever looks after the store says so
        self.roll = Roll.of(now, ages)
