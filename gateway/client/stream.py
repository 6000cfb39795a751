"""The chunks of one answer, as they come."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from types import AsyncGeneratorType
from typing import Any, Self, cast

import httpx

from gateway.client.errors import BrokenStreamError
from gateway.client.objects import as_error, read_object
from gateway.client.sse import DONE, EventReader
from gateway.client.until import until


class Stream:
    """Iterates over chunks. Closing it early, or leaving its `async with`, stops the work.

    Raises BrokenStreamError when the answer stays incomplete, DeadlineError.
    """

    def __init__(self, response: httpx.Response, end: float) -> None:
        self._response = response
        chunks = self._read(end, time.monotonic())
        self._chunks = cast("AsyncGeneratorType[dict[str, Any], None]", chunks)
        self._complete = False
        self._closed = False

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return self

    async def __anext__(self) -> dict[str, Any]:
        try:
            return await anext(self._chunks)
        except (StopAsyncIteration, BrokenStreamError):
            if self._closed and not self._complete:
                raise BrokenStreamError({"message": "the stream was closed"}) from None
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give the connection back, or close it if the answer is not complete.

        Another task that waits for a chunk meanwhile is told that the stream is broken.
        """
        self._closed = True
        if not self._chunks.ag_running:
            await self._chunks.aclose()
        await self._response.aclose()

    async def _read(self, end: float, left: float) -> AsyncGenerator[dict[str, Any], None]:
        """`left`: when nobody was waiting any more.

        What came while the caller was busy with an earlier chunk is there, however late it is when
        the caller asks for it: only time spent waiting is the server's silence.
        """
        reader, pieces = EventReader(), self._response.aiter_bytes()
        try:
            while True:
                end += max(0.0, time.monotonic() - max(end, left))
                async with until(end):
                    piece = await anext(pieces, None)
                left = time.monotonic()
                if piece is None:
                    break
                for data in reader.feed(piece):
                    if data == DONE:
                        # The body is read to its end: its connection stays usable.
                        self._complete = True
                        continue
                    chunk = read_object(data)
                    if chunk.get("error") is not None:
                        raise BrokenStreamError(as_error(chunk["error"], data))
                    yield chunk
        except (httpx.RequestError, ValueError) as problem:  # or what is no JSON, from in between
            raise BrokenStreamError(
                {"message": f"{type(problem).__name__}: {problem}"}
            ) from problem
        finally:
            await self._response.aclose()
        if not self._complete:
            raise BrokenStreamError({"message": "the stream ended before the answer did"})
