"""Reading a request body: bounded in bytes and in time before anything looks inside."""

import asyncio
from collections.abc import Mapping

from starlette.types import Receive

from gateway.errors import ApiError, Reason
from telemetry.events import Cause

# How long the rest of a refused body is read and thrown away, in seconds: a caller that is still
# writing when the connection closes would lose the answer.
LINGER = 2.0


async def read_body(
    headers: Mapping[str, str], receive: Receive, limit: int, seconds: float
) -> bytes:
    """The whole body, of at most `limit` bytes that arrive within `seconds`.

    Raises ApiError: 400 when it is compressed, 413 when it is larger, 408 when it is slower, and
    DISCONNECTED when the caller hangs up before its end.
    """
    if headers.get("content-encoding", "identity").strip().lower() not in {"identity", ""}:
        raise ApiError(
            Reason.INVALID_HEADER,
            "content-encoding must be left out: bodies are read as they come, not decompressed.",
            param="content-encoding",
        )
    if _declared(headers) > limit:
        if "expect" not in headers:  # otherwise the caller waits for leave to send it
            await discard(receive)
        raise _too_large(limit)
    try:
        async with asyncio.timeout(seconds):
            return await _collect(receive, limit)
    except TimeoutError:
        raise ApiError(
            Reason.BODY_TIMEOUT,
            f"The request body did not arrive within {seconds:g} seconds.",
            closes=True,
        ) from None


def _declared(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


async def _collect(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(Cause.DISCONNECTED)
        body += message.get("body", b"")
        if len(body) > limit:
            await discard(receive)
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


async def discard(receive: Receive) -> None:
    """Throw away the rest of a body whose refusal closes the connection, for LINGER seconds."""
    try:
        async with asyncio.timeout(LINGER):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        return


def _too_large(limit: int) -> ApiError:
    return ApiError(
        Reason.BODY_TOO_LARGE,
        f"The request body is larger than {limit} bytes.",
        facts={"limit_bytes": limit},
        closes=True,
    )
