"""Turns at something: so many at a time, and of one tenant fewer, so that others need not wait."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """At most `total` are taken at a time, by each tenant at most `for_each_tenant`; first come,

    first served. Used from one event loop. Who uses it bounds how many wait.
    """

    def __init__(self, total: int, for_each_tenant: int) -> None:
        self._all = asyncio.Semaphore(total)
        self._for_each_tenant = for_each_tenant
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def take(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn of `tenant`, and have it until the end of the block."""
        self._users[tenant] += 1
        own = self._turns.setdefault(tenant, asyncio.Semaphore(self._for_each_tenant))
        try:
            async with own, self._all:
                yield
        finally:
            self._users[tenant] -= 1
            if not self._users[tenant]:
                del self._users[tenant], self._turns[tenant]
