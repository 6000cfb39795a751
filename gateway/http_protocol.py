"""Bounds what a connection may cost before its request reaches the application.

uvicorn's parser holds request heads of any size and waits for them for ever; here a head has a
size and a time, and connections have a number. The same time is given to the rest of a body whose
request was refused before it had arrived: it is thrown away, so that the refusal can be read. Of
requests sent ahead of their answers few are read before their turn, where uvicorn's parser reads
all that come. And whoever reads nothing of an answer is cut off, where uvicorn waits for ever.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import httptools
import orjson

from gateway.connection import WatchedProtocol
from gateway.declined_upgrade import next_parser, plain_head
from gateway.read_ahead import ReadAhead

PIECE = 4096  # bytes that are parsed before it is asked whether a request waits for its turn


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Times are in seconds: `head_timeout` for a request's head and for the rest of a refused body,

    `stall_timeout` for a caller to read some of what is written.
    """

    max_connections: int
    max_header_bytes: int
    head_timeout: float
    stall_timeout: float


class BoundedHttpProtocol(WatchedProtocol):
    """Subclassed by `bounded` to hold the limits; uvicorn makes one for each connection."""

    limits: ConnectionLimits
    flow: ReadAhead

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._head_read = False  # by the last piece of data
        self._in_body = False  # the head was read and the end of the body was not
        self._rest_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = ReadAhead(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, "Service Unavailable", "saturated", "too many open connections")
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._end_rest()
        self._end_stall()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_stall()

    def timeout_keep_alive_handler(self) -> None:
        if self.flow.write_paused:  # an answer is being read that takes long; see `_await_reader`
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            super().timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        if self.pipeline or self.flow.held:
            self.flow.hold(data)
        else:
            self._take_in(data)

    def _take_in(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        rest = memoryview(data)
        while rest and not self.pipeline and not self.transport.is_closing():
            self._take_in_piece(rest[:PIECE])
            rest = rest[PIECE:]
        if rest:
            self.flow.hold(bytes(rest))
        if self.pipeline:  # for which uvicorn has stopped reading
            self.flow.resume_reading()

    def _take_in_piece(self, data: memoryview) -> None:
        begins = self._head_timer is None and not self._in_body
        self._head_bytes = len(data) + (0 if begins else self._head_bytes)
        self._head_read = False
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserError:
            self._malformed()
            return
        if begins and not self._head_read:  # most heads come in one piece, and need no timer
            self._await_head()
        if self._head_timer is not None and self._head_bytes > self.limits.max_header_bytes:
            self._head_too_large()

    def _parse(self, data: memoryview) -> memoryview:
        """Take in `data`; returns what is left for another parser."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self.parser = next_parser(self)
            self.parser.feed_data(plain_head(self.headers))
            return data[offer.args[0] :]
        return data[len(data) :]

    # While a body is read the only head is a `plain_head`.

    def on_message_begin(self) -> None:
        if not self._in_body:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._in_body:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # trailers mean nothing here and would pile up
            super().on_header(name, value.rstrip(b" \t"))  # the parser takes blanks before it only

    def on_headers_complete(self) -> None:
        if self._in_body:
            return
        if self._head_bytes > self.limits.max_header_bytes < self._head_size():
            self._head_too_large()
            raise ValueError("this head is not served")  # ends the parsing of what follows it
        self._end_head()
        super().on_headers_complete()  # fails where the target is no URL or has no path
        self._head_read = self._in_body = True

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the end of the head that made the offer; its body follows
        self._in_body = False
        self._end_rest()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and not self._answering:
            self._rest_timer = self.loop.call_later(self.limits.head_timeout, self.transport.close)
        if self.flow.held and not self.pipeline:
            self._take_in(self.flow.take())

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.head_timeout, self._head_late)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _await_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(
            self.limits.stall_timeout, self._reader_late, unread
        )

    def _reader_late(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() < unread:
            self._await_reader()
        else:
            self.transport.abort()

    def _end_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _end_rest(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _head_late(self) -> None:
        if self._answering:  # the next head has time until the answer before it is complete
            self._head_timer = self.loop.call_later(self.limits.head_timeout, self._head_late)
        elif self._head_bytes:
            self._refuse(
                408, "Request Timeout", "head_timeout", "the request's head came too slowly"
            )
        else:  # nobody asked anything, so nobody waits for an answer
            self._end_head()
            self.transport.close()

    def _head_size(self) -> int:
        """In bytes, but for the method, the version and optional blanks."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _head_too_large(self) -> None:
        self._refuse(
            431,
            "Request Header Fields Too Large",
            "headers_too_large",
            f"the request's head exceeds {self.limits.max_header_bytes} bytes",
        )

    def _malformed(self) -> None:
        if self.transport.is_closing():  # it is refused already
            return
        own = self._in_body and not self.pipeline  # the request that is answered itself
        if own and self.cycle.response_complete:
            self.transport.close()
        else:
            message = "this is not a request in valid HTTP/1.1"
            unanswered = own and not self.cycle.response_started
            self._refuse(400, "Bad Request", "malformed_request", message, unanswered=unanswered)

    def _refuse(
        self, status: int, phrase: str, code: str, message: str, *, unanswered: bool = False
    ) -> None:
        """Answer without the application, in the shape of its errors, and close.

        `unanswered`: what is refused is the request that the application was about to answer.
        """
        self._end_head()
        if self._answering and not unanswered:
            self.transport.abort()  # its caller would take this for a part of that answer
            return
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
