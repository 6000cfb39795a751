"""Server-sent events: the answer of a stream, one write for each wake-up, comments in silence."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import orjson
from starlette.types import Send

from gateway.errors import ApiError, render

ResultT = TypeVar("ResultT")

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies that buffer would hold the tokens back
]
_COMMENT = b": keep-alive\n\n"
_DONE = b"data: [DONE]\n\n"


def event(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


class StalledError(Exception):
    """The caller reads nothing; whatever is written to it would only pile up."""


class EventStream:
    """One stream. Every write raises StalledError if it is not taken in `write_timeout` seconds."""

    def __init__(self, send: Send, keepalive: float, write_timeout: float) -> None:
        self._send = send
        self._keepalive = keepalive
        self._write_timeout = write_timeout

    async def open(self) -> None:
        """Send the status; from here on errors are in-band."""
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def write(self, values: Iterable[object]) -> None:
        """Send each of `values` as an event, all in one piece."""
        events = b"".join([event(value) for value in values])
        if events:
            await self._write(events)

    async def close(self, values: Iterable[object] = ()) -> None:
        """Send the last `values` and `[DONE]`; the body ends with them."""
        await self._write(b"".join([event(value) for value in values]) + _DONE, more=False)

    async def fail(self, error: ApiError) -> None:
        """End with an error and without `[DONE]`, which clients would take for success."""
        await self._write(b"data: " + render(error).body + b"\n\n", more=False)

    async def during(self, news: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """The result of `news`, with comments sent while it takes long.

        `news` is cancelled and called again after each comment.
        """
        while True:
            try:
                async with asyncio.timeout(self._keepalive):
                    return await news()
            except TimeoutError:
                await self._write(_COMMENT)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        try:
            async with asyncio.timeout(self._write_timeout):
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise StalledError from None
