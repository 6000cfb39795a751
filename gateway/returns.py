"""How a refused caller is recognised when it comes back, so that its promised place is found."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.errors import ApiError, Reason
from gateway.lineage import Ids
from telemetry.secrets import holds_key

LONGEST_KEY = 256
_KEY = re.compile(rf"[ -~]{{1,{LONGEST_KEY}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Return:
    """`names` under which a place may be held, the idempotency `key` among them, and `retry` if the

    client says that it tries again.
    """

    names: tuple[str, ...] = ()
    key: str | None = None
    retry: bool = False


def read_key(headers: Mapping[str, str]) -> str | None:
    """The idempotency key of a call, if it has one. Raises ApiError 400."""
    key = headers.get("idempotency-key")
    if key is not None and (not _KEY.fullmatch(key) or holds_key(key)):
        raise ApiError(
            Reason.INVALID_HEADER,
            f"idempotency-key must be 1 to {LONGEST_KEY} printable ASCII characters and hold no "
            "API key.",
            param="idempotency-key",
        )
    return key


def read_return(headers: Mapping[str, str], ids: Ids) -> Return:
    """From the task id, the idempotency key and the retry count that stock clients send."""
    names = []
    if ids.task is not None:
        names.append(f"task:{ids.task}")
    key = read_key(headers)
    if key is not None:
        names.append(f"key:{key}")
    count = headers.get("x-stainless-retry-count", "")
    again = count.isascii() and count.isdigit() and int(count[:4]) > 0
    return Return(tuple(names), key, retry=again)
