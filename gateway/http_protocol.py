"""Bounds what a connection may cost before its request reaches the application.

uvicorn's parser holds request heads of any size and waits for them for ever; here a head has a
size and a time, and connections have a number.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.connection import AbortableProtocol


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`head_timeout` is in seconds, for one request's head."""

    max_connections: int
    max_header_bytes: int
    head_timeout: float


class BoundedHttpProtocol(AbortableProtocol):
    """Subclassed by `bounded` to hold the limits; uvicorn makes one for each connection."""

    limits: ConnectionLimits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, "Service Unavailable", "saturated", "too many open connections")
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and self._idle:
            self._await_head()
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_timer is not None and self._head_bytes > self.limits.max_header_bytes:
            self._refuse(
                431,
                "Request Header Fields Too Large",
                "headers_too_large",
                f"the request's head exceeds {self.limits.max_header_bytes} bytes",
            )

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    @property
    def _idle(self) -> bool:
        """Whether no request is being answered, so that what arrives begins a new one."""
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self.limits.head_timeout, self._head_late)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        if self._head_bytes:
            self._refuse(
                408, "Request Timeout", "head_timeout", "the request's head came too slowly"
            )
        else:  # nobody asked anything, so nobody waits for an answer
            self._end_head()
            self.transport.close()

    def _refuse(self, status: int, phrase: str, code: str, message: str) -> None:
        """Answer without the application, in the shape of its errors, and close."""
        self._end_head()
        kind = "overloaded_error" if status == 503 else "invalid_request_error"
        error = {"message": message, "type": kind, "param": None, "code": code}
        body = orjson.dumps({"error": error})
        head = (
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n"
        )
        if status == 503:
            head += "retry-after: 1\r\n"
        self.transport.write(f"{head}\r\n".encode() + body)
        self.transport.close()


def bounded(limits: ConnectionLimits) -> type[BoundedHttpProtocol]:
    """The protocol class for uvicorn, with `limits`."""
    return type("ServedHttpProtocol", (BoundedHttpProtocol,), {"limits": limits})
