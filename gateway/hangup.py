"""Notices that the caller hung up, before the first token and after, streaming or not."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from telemetry.events import Cause


class Cancellable(Protocol):
    def cancel(self, cause: Cause) -> None: ...


class Audience(Protocol):
    """Whom an answer is written for."""

    def watch(self, on_gone: Callable[[], None]) -> None:
        """Call `on_gone` once nobody is there any more, at once if that is so already."""
        ...

    def unwatch(self) -> None:
        """Call nobody any more."""
        ...


class Hangup:
    """Watches an audience whose request has been read; a context manager."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self._gone = asyncio.Event()
        self._work: Cancellable | None = None

    @property
    def happened(self) -> bool:
        return self._gone.is_set()

    async def wait(self) -> None:
        """Return once the audience is gone."""
        await self._gone.wait()

    async def within(self, seconds: float) -> bool:
        """Whether the audience is gone, or goes in that time; returns once it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self.happened

    def cancels(self, work: Cancellable) -> None:
        """Cancel `work` when the caller hangs up, at once if that already happened."""
        self._work = work
        if self.happened:
            work.cancel(Cause.DISCONNECTED)

    def __enter__(self) -> Self:
        self._audience.watch(self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._audience.unwatch()

    def _note(self) -> None:
        self._gone.set()
        if self._work is not None:
            self._work.cancel(Cause.DISCONNECTED)
