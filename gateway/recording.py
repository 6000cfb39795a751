"""One answer that several callers read, from its beginning, while it is written and afterwards.

A recording takes the place of a connection: what computes the answer writes to it, and finds it
hung up once every reader is gone. Each reader writes to its own caller at that caller's pace.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from starlette.types import Message, Send

from gateway import routed
from gateway.call import JSON
from gateway.errors import ApiError, Reason
from gateway.sse import STREAM_HEADERS, StalledError
from telemetry.events import Cause

# Of a stream that can still be read from its beginning; of a longer one no more is held for its
# slowest reader.
MOST_BYTES = 1 << 20
MOST_TOGETHER = 128 << 20  # bytes of all that are written now; beyond, no more can be joined
REPLAYED = (b"idempotent-replayed", b"true")
ROUTED_AWAY = (
    "The call under this idempotency key was routed to a model that is not yours to use; use a new "
    "idempotency key."
)


@dataclass(slots=True)
class Room:
    """What recordings that are being written hold together."""

    held: int = 0  # bytes


class Recording:
    """`send` is what an ASGI application is called with; see `gateway.hangup.Audience`."""

    def __init__(self, room: Room, on_abandoned: Callable[[], None] = lambda: None) -> None:
        self._room = room
        self.start: Message | None = None
        self.ended = False
        self.replayed = False
        self.error: ApiError | None = None
        self.dropped = 0  # pieces that are not held any more
        self._on_abandoned = on_abandoned
        self._pieces: deque[bytes] = deque()
        self._held = 0  # their bytes
        self._readers: set[Reader] = set()
        self._abandoned = False
        self._on_gone: Callable[[], None] | None = None
        self._news = asyncio.Event()

    @property
    def streams(self) -> bool:
        """Whether the answer, once it has started, is one of events."""
        return self.start is not None and STREAM_HEADERS[0] in self.start["headers"]

    @property
    def routed_to(self) -> str:
        """The model that gave the answer, where that was not the preferred one."""
        return "" if self.start is None else routed.model_of(self.start["headers"])

    @property
    def end(self) -> int:
        """The number of pieces so far."""
        return self.dropped + len(self._pieces)

    @property
    def whole(self) -> bytes | None:
        """All of a complete answer; None for one too long to be kept."""
        return None if self.dropped or self._held > MOST_BYTES else self.after(0)

    def after(self, position: int) -> bytes:
        """What came after the first `position` pieces, none of which may be `dropped`."""
        return b"".join(islice(self._pieces, position - self.dropped, None))

    async def news(self) -> None:
        """Return when something has changed."""
        await self._news.wait()

    async def send(self, message: Message) -> None:
        """Take the next message of the answer; never waits."""
        if message["type"] == "http.response.start":
            self.start = message
        else:
            self._pieces.append(message.get("body", b""))
            self._hold(len(self._pieces[-1]))
            self.ended = not message.get("more_body", False)
            self._trim()
        self.wake()

    def watch(self, on_gone: Callable[[], None]) -> None:
        """Call `on_gone` once nobody reads any more, at once if that is so already."""
        self._on_gone = on_gone
        if self._abandoned:
            on_gone()

    def unwatch(self) -> None:
        """Call nobody any more."""
        self._on_gone = None

    def replay(self, body: bytes, routed_to: str, *, stream: bool) -> None:
        """Be a complete answer that was kept."""
        length = (b"content-length", str(len(body)).encode())
        headers = STREAM_HEADERS if stream else [JSON, length]
        headers = [*headers, *routed.headers_of(routed_to)]
        self.start = {"type": "http.response.start", "status": 200, "headers": headers}
        self._pieces.append(body)
        self.ended = self.replayed = True
        self.wake()

    def fail(self, error: ApiError) -> None:
        """There is no answer, or no more of it: readers raise `error`."""
        self.error = error
        self.wake()

    def wake(self) -> None:
        """Have everybody look again."""
        self._news.set()
        self._news = asyncio.Event()

    def close(self) -> None:
        """Nothing more is written; what is read is the readers'."""
        self._room.held -= self._held

    def join(self, reader: "Reader") -> None:
        self._readers.add(reader)

    def leave(self, reader: "Reader") -> None:
        self._readers.discard(reader)
        if not (self._readers or self.ended or self.error):
            self._abandoned = True
            if self._on_gone is not None:
                self._on_gone()
            self._on_abandoned()

    def _trim(self) -> None:
        """Of a long stream, drop what all readers have had, and more when one is far behind."""
        room = self._room.held <= MOST_TOGETHER
        if self._held <= MOST_BYTES and room and not self.dropped:
            return
        slowest = min((reader.position for reader in self._readers), default=self.end)
        while len(self._pieces) > 1 and (self.dropped < slowest or self._held > MOST_BYTES):
            self._hold(-len(self._pieces.popleft()))
            self.dropped += 1

    def _hold(self, more: int) -> None:
        self._held += more
        self._room.held += more


class Reader:
    """One caller of a recording, who counts from here until `play` ends.

    One who `joins` is told that the answer was begun for another.
    """

    def __init__(self, recording: Recording, *, joins: bool = False) -> None:
        self.position = 0
        self.joins = joins
        self._recording = recording
        self._gone = False
        recording.join(self)

    def cancel(self, _: Cause) -> None:
        """The caller hung up."""
        self._gone = True
        self._recording.wake()

    async def play(
        self, send: Send, write_timeout: float, wait: float | None, allows: Callable[[str], bool]
    ) -> bool:
        """Write the answer; False if the caller left before its end.

        Its start is waited for `wait` seconds, then TimeoutError is raised. Raises what the answer
        failed of, StalledError for a caller who does not read, and ApiError 422 where the
        call was routed to a model that `allows` says is not this caller's to read.
        """
        recording = self._recording
        try:
            async with asyncio.timeout(wait):
                await self._until(lambda: recording.start or recording.error)
            start = recording.start
            if start is not None and not self._gone:
                if recording.routed_to and not allows(recording.routed_to):
                    raise ApiError(Reason.KEY_REUSED, ROUTED_AWAY, param="idempotency-key")
                again = [REPLAYED] if self.joins or recording.replayed else []
                await send({**start, "headers": [*start["headers"], *again]})
                return await self._write(send, write_timeout)
            if recording.error is not None:
                raise recording.error
            return False
        finally:
            recording.leave(self)

    async def _write(self, send: Send, patience: float) -> bool:
        recording, more = self._recording, True
        while more:
            await self._until(
                lambda: recording.end > self.position or recording.ended or recording.error
            )
            if self._gone:
                return False
            if self.position < recording.dropped:
                raise StalledError
            if recording.end == self.position and recording.error is not None:
                raise recording.error
            body, more = recording.after(self.position), not recording.ended
            self.position = recording.end
            try:
                async with asyncio.timeout(patience):
                    await send({"type": "http.response.body", "body": body, "more_body": more})
            except TimeoutError:
                raise StalledError from None
        return True

    async def _until(self, ready: Callable[[], object]) -> None:
        """Wait until that holds or the caller is gone."""
        while not (self._gone or ready()):
            await self._recording.news()
