"""Carries cancellations between this server and the others on its store.

Told with the store away, they take effect here at once and elsewhere when it is back.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable

from telemetry.lineage import Scope
from tenants.cancellations import Cancellation, Cancellations
from tenants.connection import RecordDamaged, StoreUnavailable

LOOK_SECONDS = 1.0  # between looks for other servers and for a store that is back
MOST_PENDING = 4096  # cancellations to tell or to act upon; the oldest go first

logger = logging.getLogger("watermaster")


class Courier:
    """Used from one event loop. `run` and `Cancellations.follow` with `hear` go on beside it."""

    def __init__(self, store: Cancellations) -> None:
        self._store = store
        self._name = secrets.token_hex(8)
        self._unsent: deque[Cancellation] = deque(maxlen=MOST_PENDING)
        self._unheard: deque[Cancellation] = deque(maxlen=MOST_PENDING)
        self._act: Callable[[Cancellation], None] | None = None
        self._alone = False

    @property
    def alone(self) -> bool:
        """Whether no other server listened lately; one whose connection broke may be there."""
        return self._alone

    def attach(self, act: Callable[[Cancellation], None]) -> None:
        """Have `act` called for what other servers tell, from what they told lately on."""
        self._act = act
        while self._unheard:
            act(self._unheard.popleft())

    async def tell(self, scope: Scope) -> None:
        """Tell the others that a scope was cancelled; later, if the store is away."""
        await self._send(Cancellation(self._name, scope))

    async def commit(self, scope: Scope, winner: Scope) -> Scope:
        """Tell the others that `winner` won the race of a task; returns who has won it.

        Raises RecordDamaged if somebody has, and nobody can read who.
        """
        return await self._send(Cancellation(self._name, scope, winner)) or winner

    async def run(self) -> None:
        """Look for others, and tell them what could not be told before, for ever."""
        while True:
            try:
                self._alone = await self._store.listeners() <= 1
                while self._unsent:
                    await self._tell_late(self._unsent[0])
                    self._unsent.popleft()
            except StoreUnavailable:
                self._alone = False  # nobody knows
            await asyncio.sleep(LOOK_SECONDS)

    def hear(self, cancellation: Cancellation) -> None:
        """Act upon what another server told."""
        if cancellation.origin == self._name:
            return
        if self._act is None:
            self._unheard.append(cancellation)
        else:
            self._act(cancellation)

    async def _tell_late(self, cancellation: Cancellation) -> None:
        try:
            await self._told(cancellation)
        except RecordDamaged as error:
            logger.warning("a cancellation does not reach other servers: %s", error)

    async def _send(self, cancellation: Cancellation) -> Scope | None:
        try:
            return await self._told(cancellation)
        except RecordDamaged:
            raise
        except StoreUnavailable as lost:
            logger.warning("a cancellation reaches other servers later: %s", lost)
            self._unsent.append(cancellation)
            return None

    async def _told(self, cancellation: Cancellation) -> Scope | None:
        if cancellation.spare is not None:
            return await self._store.commit(cancellation)
        await self._store.tell(cancellation)
        return None
