"""The chunks of one answer, as they come."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Self

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
        self._chunks = self._read(end)

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return self

    async def __anext__(self) -> dict[str, Any]:
        return await anext(self._chunks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give the connection back, or close it if the answer is not complete."""
        await self._chunks.aclose()
        await self._response.aclose()

    async def _read(self, end: float) -> AsyncGenerator[dict[str, Any], None]:
        reader, pieces = EventReader(), self._response.aiter_bytes()
        complete = False
        try:
            while True:
                async with until(end):
                    piece = await anext(pieces, None)
                if piece is None:
                    break
                for data in reader.feed(piece):
                    if data == DONE:
                        complete = True  # the body is read to its end: its connection stays usable
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
        if not complete:
            raise BrokenStreamError({"message": "the stream ended before the answer did"})
