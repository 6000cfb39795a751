"""Server-sent events: a stream's answer, one write for each wake-up, signs of life in silence."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from starlette.types import Send

from gateway.call import Call, RawHeaders
from gateway.dialect import render
from gateway.errors import ApiError

ResultT = TypeVar("ResultT")

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies that buffer would hold the tokens back
]


class StalledError(Exception):
    """The caller reads nothing; whatever is written to it would only pile up."""


class EventStream:
    """One stream, begun with STREAM_HEADERS and `more`.

    Every write raises StalledError if it is not taken in `write_timeout` seconds.
    """

    def __init__(
        self,
        send: Send,
        call: Call,
        keepalive: float,
        write_timeout: float,
        more: RawHeaders | None = None,
    ) -> None:
        self._send = send
        self._call = call
        self._dialect = call.dialect
        self._keepalive = keepalive
        self._write_timeout = write_timeout
        self._headers = [*STREAM_HEADERS, *more] if more else STREAM_HEADERS
        self.opened = False

    async def open(self) -> None:
        """Send the status, once; from here on errors are in-band."""
        if self.opened:
            return
        self.opened = True
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})

    async def write(self, values: Iterable[Mapping[str, object]]) -> None:
        """Send each of `values` as an event, all in one piece."""
        events = self._events(values)
        if events:
            await self._write(events)

    async def close(self, values: Iterable[Mapping[str, object]] = ()) -> None:
        """Send the last `values`; the stream is complete with them."""
        await self._write(self._events(values) + self._dialect.done, more=False)

    async def fail(self, error: ApiError) -> None:
        """End with an error and without the mark of completeness."""
        body = render(error, self._dialect, self._call.request_id).body
        await self._write(self._events([body]), more=False)

    async def during(self, news: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """The result of `news`, with signs of life sent while it takes long.

        `news` is cancelled and called again after each.
        """
        while True:
            try:
                async with asyncio.timeout(self._keepalive):
                    return await news()
            except TimeoutError:
                await self._write(self._dialect.silence)

    def _events(self, values: Iterable[Mapping[str, object]]) -> bytes:
        return b"".join([self._dialect.event(value) for value in values])

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        try:
            async with asyncio.timeout(self._write_timeout):
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise StalledError from None
