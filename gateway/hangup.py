"""Notices that the caller hung up, before the first token and after, streaming or not.

No framework cancels a handler that is not writing, so we watch `receive()` ourselves.
"""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from starlette.types import Receive

from telemetry.events import Cause


class Cancellable(Protocol):
    def cancel(self, cause: Cause) -> None: ...


class Hangup:
    """Watches a connection whose request body has been read; an async context manager."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = asyncio.Event()
        self._work: Cancellable | None = None

    @property
    def happened(self) -> bool:
        return self._gone.is_set()

    async def wait(self) -> None:
        """Return once the connection is gone."""
        await self._gone.wait()

    async def within(self, seconds: float) -> bool:
        """Whether the connection is gone, or goes in that time; returns once it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self.happened

    def cancels(self, work: Cancellable) -> None:
        """Cancel `work` when the caller hangs up, at once if that already happened."""
        self._work = work
        if self.happened:
            work.cancel(Cause.DISCONNECTED)

    async def __aenter__(self) -> Self:
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watcher.cancel()
        await asyncio.wait((self._watcher,))
        if not self._watcher.cancelled():
            self._watcher.result()  # a fault of its own is not to pass unseen

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone.set()
        if self._work is not None:
            self._work.cancel(Cause.DISCONNECTED)
