"""The one middleware: every answer has an id and the server's clock, every error a shape."""

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.call import CALL_KEY, Call, read_headers, send_error
from gateway.dialect import dialect_of
from gateway.errors import ApiError, Reason
from gateway.lineage import request_id
from telemetry.clock import Clock

logger = logging.getLogger(__name__)

MILLISECOND = 1_000_000


class Edge:
    """Plain ASGI, so that disconnects and context variables reach the handlers."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = read_headers(scope)
        dialect = dialect_of(scope["path"])
        call = Call(request_id(headers), dialect, headers, self._clock.now())
        scope[CALL_KEY] = call
        answer = _Answer(send, call, self._clock)
        try:
            await self._app(scope, receive, answer.send)
        except ApiError as error:
            if answer.started:
                raise
            await send_error(answer.send, error, call)
        except Exception:
            logger.exception("request %s failed", call.request_id)
            if answer.started:  # the server cuts the connection, so that it does not look complete
                raise
            await send_error(answer.send, ApiError(Reason.INTERNAL), call)


class _Answer:
    """The caller's side of one call."""

    def __init__(self, send: Send, call: Call, clock: Clock) -> None:
        self._send = send
        self._request = call.request_id.encode()
        self._id_headers = call.dialect.id_headers
        self._told = call.told
        self._clock = clock
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            now = str(self._clock.wall() // MILLISECOND).encode()
            message["headers"] = [
                *message.get("headers", ()),
                *((name, self._request) for name in self._id_headers),
                (b"x-server-time", now),
                *(header for source in self._told for header in source()),
            ]
        await self._send(message)
