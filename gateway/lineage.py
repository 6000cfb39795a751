"""Cancellation identities and the request id, read from headers or baggage or made up."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.baggage import KEYS, read_baggage
from gateway.errors import ApiError, Reason
from gateway.ids import fresh
from telemetry import semconv
from telemetry.lineage import Lineage
from telemetry.secrets import holds_key

_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,127}"
_ID = re.compile(_PATTERN, re.ASCII)
ID_SCHEMA: dict[str, Any] = {"type": "string", "pattern": f"^{_PATTERN}$"}
_RULE = (
    "must be 1 to 128 characters out of A-Z a-z 0-9 . _ : @ + = -, start with one of A-Z a-z 0-9, "
    "and hold no API key"
)


@dataclass(frozen=True, slots=True)
class Ids:
    """What the caller said. A part left out stands for the request alone.

    `passed_over` are the members of its baggage that would have been parts, and are no ids.
    """

    request: str
    task: str | None
    run: str | None
    attempt: str | None
    passed_over: tuple[str, ...] = ()

    def lineage(self, tenant: str, key: str = "") -> Lineage:
        return Lineage(
            tenant=tenant,
            task=self.task or self.request,
            run=self.run or self.request,
            attempt=self.attempt or self.request,
            request=self.request,
            key=key,
        )


def valid_id(text: str) -> bool:
    """Whether `text` may be an id; not if it is a key, since ids are logged and traced."""
    return _ID.fullmatch(text) is not None and not holds_key(text)


def check_id(name: str, text: str, reason: Reason = Reason.INVALID_HEADER) -> str:
    """`text` itself, or ApiError 400 that names the header or path part `name`."""
    if not valid_id(text):
        raise ApiError(reason, f"{name} {_RULE}.", param=name)
    return text


def request_id(headers: Mapping[str, str]) -> str:
    """The caller's `x-request-id`, or a new one where it is absent or not fit to be echoed."""
    given = headers.get("x-request-id", "")
    return given if valid_id(given) else fresh("req-")


def read_ids(headers: Mapping[str, str], request: str) -> Ids:
    """Ids of a call that answers as `request`; its own headers go before its baggage's members.

    Raises ApiError 400 for a malformed header, and passes over what is malformed in baggage: a
    hop that knows nothing of us may have written it, and the call is none the worse.
    """
    if "x-request-id" in headers:
        check_id("x-request-id", headers["x-request-id"])
    task, run, attempt = (check_id(n, headers[n]) if n in headers else None for n in KEYS.values())
    if "baggage" not in headers:
        return Ids(request, task, run, attempt)
    members = read_baggage(headers["baggage"]).items()
    open_to = {member: text for member, text in members if KEYS[member] not in headers}
    good = {member: text for member, text in open_to.items() if valid_id(text)}
    return Ids(
        request,
        task or good.get(semconv.TASK),
        run or good.get(semconv.RUN),
        attempt or good.get(semconv.ATTEMPT),
        tuple(member for member in open_to if member not in good),
    )
