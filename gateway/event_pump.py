"""Carries the engine's events to their readers without holding up the engine.

The engine thread appends one list a step and goes on. The event loop takes what has gathered every
`INTERVAL` seconds, and only while there is something: an idle server is not woken.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from telemetry.events import Event

INTERVAL = 0.05  # seconds; one wake-up of the loop for several steps
CAPACITY = 200_000  # events; seconds of work of a busy engine
CHUNK = 64  # lists read before other callbacks of the loop get their turn

Reader = Callable[[Sequence[Event]], None]

logger = logging.getLogger(__name__)


class EventPump:
    """`dropped` counts the events that no reader saw because the loop was too far behind.

    Create it on the loop that reads. `post` may be called from one other thread, everything else
    on the loop only.
    """

    def __init__(self, readers: Sequence[Reader], capacity: int = CAPACITY) -> None:
        self._readers = tuple(readers)
        self._capacity = capacity
        self._loop = asyncio.get_running_loop()
        self._lists: deque[list[Event]] = deque()
        # Each counter has one writer, so that their difference needs no lock.
        self._posted = 0
        self._read = 0
        self._scheduled = False
        self.dropped = 0

    def post(self, events: list[Event]) -> None:
        """Hand over one step's events; never blocks. The list is not to be changed afterwards."""
        if self._posted - self._read + len(events) > self._capacity:
            self.dropped += len(events)
            return
        self._posted += len(events)
        self._lists.append(events)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._loop.call_later, INTERVAL, self._wake)

    def flush(self) -> None:
        """Let the readers see everything posted so far."""
        while self._lists:
            self._deliver()

    def _wake(self) -> None:
        # Cleared before reading: what is posted from now on schedules a wake-up of its own.
        self._scheduled = False
        for _ in range(min(CHUNK, len(self._lists))):
            self._deliver()
        if self._lists and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._wake)

    def _deliver(self) -> None:
        events = self._lists.popleft()
        self._read += len(events)
        for reader in self._readers:
            try:
                reader(events)
            except Exception:
                # A defect in one reader must not keep events from the others, or stop the server.
                logger.exception("a reader of engine events failed")
