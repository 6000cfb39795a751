"""How a refused caller is recognised when it comes back, so that its promised place is found."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.lineage import Ids

LONGEST_KEY = 256


@dataclass(frozen=True, slots=True)
class Return:
    """`names` under which a place may be held; `retry` if the client says that it tries again."""

    names: tuple[str, ...] = ()
    retry: bool = False


def read_return(headers: Mapping[str, str], ids: Ids) -> Return:
    """From the task id, the idempotency key and the retry count that stock clients send."""
    names = []
    if ids.task is not None:
        names.append(f"task:{ids.task}")
    key = headers.get("idempotency-key", "")
    if 0 < len(key) <= LONGEST_KEY:
        names.append(f"key:{key}")
    count = headers.get("x-stainless-retry-count", "")
    return Return(tuple(names), retry=count.isascii() and count.isdigit() and int(count[:4]) > 0)
