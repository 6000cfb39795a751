"""The one middleware: every answer has an id and the server's clock, every error a shape.

While the server drains, an answer closes its connection: behind a balancer that spreads connections
the caller's next call, or the same one sent again, then reaches a server that takes it.
"""

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.body import discard
from gateway.call import CALL_KEY, Call, read_headers, send_error
from gateway.connection import connection_of
from gateway.dialect import dialect_of
from gateway.errors import ApiError, Reason
from gateway.lineage import request_id
from gateway.state import Gateway
from telemetry.units import MILLISECOND

logger = logging.getLogger(__name__)


class Edge:
    """Plain ASGI, so that disconnects and context variables reach the handlers."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = read_headers(scope)
        dialect = dialect_of(scope["path"])
        call = Call(request_id(headers), dialect, headers, self._gateway.clock.now())
        scope[CALL_KEY] = call
        answer = _Answer(send, call, self._gateway)
        try:
            await self._app(scope, receive, answer.send)
        except ApiError as error:
            if answer.started:
                raise
            # who expects leave to send the body does not send it
            comes = connection_of(scope).receiving and "expect" not in headers
            if comes and self._gateway.draining:  # see `discard`: this closes the connection
                await discard(receive)
            await send_error(answer.send, error, call)
        except Exception:
            logger.exception("request %s failed", call.request_id)
            if answer.started:  # the server cuts the connection, so that it does not look complete
                raise
            await send_error(answer.send, ApiError(Reason.INTERNAL), call)


class _Answer:
    """The caller's side of one call."""

    def __init__(self, send: Send, call: Call, gateway: Gateway) -> None:
        self._send = send
        self._request = call.request_id.encode()
        self._id_headers = call.dialect.id_headers
        self._told = call.told
        self._gateway = gateway
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            now = str(self._gateway.clock.wall() // MILLISECOND).encode()
            message["headers"] = [
                *message.get("headers", ()),
                *((name, self._request) for name in self._id_headers),
                (b"x-server-time", now),
                *(header for source in self._told for header in source()),
            ]
            if self._gateway.draining:
                message["headers"].append((b"connection", b"close"))
        await self._send(message)
