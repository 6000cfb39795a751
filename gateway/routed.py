"""How an answer says that the preferred model did not give it, and why."""

from collections.abc import Iterable
from urllib.parse import quote, unquote

from gateway.call import RawHeaders
from telemetry.events import Cause

MODEL = "x-watermaster-model"
REASON = "x-watermaster-routed"
_PLAIN = "!#$&'()*+,/:;=?@[] "  # beside letters and digits; a name may hold anything
ONLY_REASON = str(Cause.DEADLINE_INFEASIBLE)


def headers_of(model: str) -> RawHeaders:
    """For an answer that `model` gave in the preferred one's place; none where that is empty."""
    if not model:
        return []
    return [
        (MODEL.encode(), quote(model, _PLAIN).encode()),
        (REASON.encode(), ONLY_REASON.encode()),
    ]


def model_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The model that such an answer names, or nothing."""
    return unquote(dict(headers).get(MODEL.encode(), b"").decode())
