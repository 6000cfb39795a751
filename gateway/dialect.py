"""The families of APIs that are spoken: how each spells errors and the events of a stream.

The reasons, waits and facts are the same in all of them; `gateway.errors` holds that table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import orjson

from gateway import limit_headers
from gateway.errors import ApiError, Retry, Row
from gateway.limit_headers import Standing
from gateway.retry_after import headers_of, wait_ms

MESSAGES_PATH = "/v1/messages"


class Dialect(Protocol):
    """`silence` is sent while a stream has nothing to say, `done` at the end of a complete one."""

    id_headers: ClassVar[tuple[bytes, ...]]  # under which the request id is answered
    silence: ClassVar[bytes]
    done: ClassVar[bytes]

    def status(self, row: Row) -> int:
        """The HTTP status that clients of this family know for a line of the table."""
        ...

    def error(
        self, error: ApiError, facts: Mapping[str, object], request_id: str
    ) -> dict[str, object]:
        """The body of an error; a stream sends it as an event."""
        ...

    def error_schema(self, codes: Sequence[str]) -> dict[str, object]:
        """The JSON schema of the body of an error that has one of `codes`."""
        ...

    def event(self, value: Mapping[str, object]) -> bytes:
        """One server-sent event."""
        ...

    def limits(self, standings: Sequence[Standing], wall_ms: int) -> list[tuple[bytes, bytes]]:
        """The headers that tell how a tenant's limits stand at `wall_ms`, Unix milliseconds."""
        ...


class OpenAI:
    """As OpenAI's own API and its stock clients."""

    id_headers: ClassVar[tuple[bytes, ...]] = (b"x-request-id",)
    silence: ClassVar[bytes] = b": keep-alive\n\n"
    done: ClassVar[bytes] = b"data: [DONE]\n\n"

    def status(self, row: Row) -> int:
        return row.status

    def error(
        self,
        error: ApiError,
        facts: Mapping[str, object],
        request_id: str,  # noqa: ARG002  # it is in a header
    ) -> dict[str, object]:
        named = {"message": error.message, "type": error.row.type}
        return {"error": {**named, "param": error.param, "code": error.row.code, **facts}}

    def error_schema(self, codes: Sequence[str]) -> dict[str, object]:
        return _object(error=_object(message=_TEXT, type=_TEXT, param={}, code={"enum": codes}))

    def event(self, value: Mapping[str, object]) -> bytes:
        return b"data: " + orjson.dumps(value) + b"\n\n"

    def limits(
        self,
        standings: Sequence[Standing],
        wall_ms: int,  # noqa: ARG002  # resets are told as durations
    ) -> list[tuple[bytes, bytes]]:
        return limit_headers.openai(standings)


class Anthropic:
    """As Anthropic's API and its stock clients. Every body and event says its own `type`."""

    id_headers: ClassVar[tuple[bytes, ...]] = (b"x-request-id", b"request-id")
    silence: ClassVar[bytes] = b'event: ping\ndata: {"type":"ping"}\n\n'
    done: ClassVar[bytes] = b""  # the last event says it

    # By status; everything else in the 400s is an invalid request.
    _TYPES: ClassVar[Mapping[int, str]] = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        409: "conflict_error",
        413: "request_too_large",
        429: "rate_limit_error",
        500: "api_error",
        504: "timeout_error",
        529: "overloaded_error",
    }

    def status(self, row: Row) -> int:
        return 529 if row.status == 503 else row.status

    def error(
        self, error: ApiError, facts: Mapping[str, object], request_id: str
    ) -> dict[str, object]:
        kind = self._TYPES.get(self.status(error.row), "invalid_request_error")
        named = {"type": kind, "message": error.message}
        return {
            "type": "error",
            "error": {**named, "param": error.param, "code": error.row.code, **facts},
            "request_id": request_id,
        }

    def error_schema(self, codes: Sequence[str]) -> dict[str, object]:
        error = _object(type=_TEXT, message=_TEXT, param={}, code={"enum": codes})
        return _object(type={"const": "error"}, error=error, request_id=_TEXT)

    def event(self, value: Mapping[str, object]) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (str(value["type"]).encode(), orjson.dumps(value))

    def limits(self, standings: Sequence[Standing], wall_ms: int) -> list[tuple[bytes, bytes]]:
        return limit_headers.anthropic(standings, wall_ms)


_TEXT = {"type": "string"}


def _object(**members: object) -> dict[str, object]:
    """The JSON schema of an object that has at least these members."""
    return {"type": "object", "required": list(members), "properties": members}


OPENAI = OpenAI()
ANTHROPIC = Anthropic()


def dialect_of(path: str) -> Dialect:
    """What the callers of a path expect, refusals of the router itself included."""
    return ANTHROPIC if path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/") else OPENAI


@dataclass(frozen=True, slots=True)
class Rendered:
    """An error ready for the wire; `body` alone is what a stream sends in-band."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: dict[str, object]


def render(error: ApiError, dialect: Dialect, request_id: str) -> Rendered:
    """Status, headers and body of `error` for a caller of `dialect`."""
    facts, headers = _told(error)
    return Rendered(dialect.status(error.row), headers, dialect.error(error, facts, request_id))


def _told(error: ApiError) -> tuple[dict[str, object], list[tuple[bytes, bytes]]]:
    """The facts of `error` and its headers, with when to come back where that is known."""
    row = error.row
    facts = dict(error.facts)
    headers = [(name.encode(), value.encode("latin-1")) for name, value in error.headers.items()]
    known = row.retry is Retry.AFRESH and error.retry_after is not None
    if row.retry is Retry.LATER or known:
        wait = wait_ms(error.retry_after, row.wait_ms, promised=error.promised)
        facts["retry_after_ms"] = wait
        headers += headers_of(wait, again=row.retry is Retry.LATER)
    elif row.retry is not Retry.UNSAID:
        headers.append((b"x-should-retry", b"false"))
    if error.closes:
        headers.append((b"connection", b"close"))
    return facts, headers
