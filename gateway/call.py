"""What path and headers alone tell of one HTTP call, and the ASGI plumbing around it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from starlette.types import Scope, Send

from gateway.dialect import Dialect, render
from gateway.errors import ApiError

CALL_KEY = "watermaster.call"
RawHeaders = list[tuple[bytes, bytes]]
JSON = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class Call:
    """`headers` are by lower-case name. `arrived` is in monotonic ns. `told` gives headers for

    whatever answer begins.
    """

    request_id: str
    dialect: Dialect
    headers: Mapping[str, str]
    arrived: int
    told: list[Callable[[], RawHeaders]] = field(default_factory=list)

    @staticmethod
    def of(scope: Scope) -> "Call":
        """The call that the outermost middleware put into `scope`."""
        call: Call = scope[CALL_KEY]
        return call


def read_headers(scope: Scope) -> dict[str, str]:
    """Of a name that comes twice the first line counts, or all of them where it is a list."""
    headers: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        if name not in headers:
            headers[name] = value.decode("latin-1")
        elif name == "baggage":
            headers[name] += "," + value.decode("latin-1")
    return headers


async def send_whole(
    send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = (JSON,)
) -> None:
    """Answer in one piece."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, value: object, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Answer 200 with a value, and `more` headers."""
    await send_whole(send, 200, orjson.dumps(value), [JSON, *more])


async def send_error(send: Send, error: ApiError, call: Call) -> None:
    rendered = render(error, call.dialect, call.request_id)
    body = orjson.dumps(rendered.body)
    await send_whole(send, rendered.status, body, [JSON, *rendered.headers])
