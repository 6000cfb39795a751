"""What all servers of the store know of a tenant's task or call, for an answer over HTTP."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Generic

from gateway.asking import PartT
from gateway.errors import ApiError, Reason
from gateway.inquirer import Read
from gateway.state import Gateway

MOST_SEQUENCES = 128  # told one by one, the newest

Dated = tuple[int, dict[str, object]]  # when a sequence arrived, in Unix ns, and what is told of it


@dataclass(frozen=True, slots=True)
class Found(Generic[PartT]):
    """The parts of the servers that know it, at least one. How many servers are `missing` is None

    if nobody can say.
    """

    parts: tuple[PartT, ...]
    missing: int | None

    def standing(self) -> dict[str, object]:
        """Whether that is all there is; JSON-ready."""
        return {"complete": self.missing == 0, "missing_servers": self.missing}


class Everywhere(Generic[PartT]):
    """Things of one `kind`, for people a `noun`. `tell` gives this server's part of the tenant's

    that has a name, as orjson takes it, or None for nothing; `read` takes in another server's.
    """

    def __init__(
        self,
        gateway: Gateway,
        kind: str,
        noun: str,
        tell: Callable[[str, str], Awaitable[PartT | None]],
        read: Read[PartT],
    ) -> None:
        self._access = gateway.access
        self._kind = kind
        self._noun = noun
        self._tell = tell
        self._read = read
        gateway.access.informant.attach(kind, tell)

    async def find(self, tenant: str, name: str) -> Found[PartT]:
        """Raises ApiError: 404 if no server knows it, 503 if one may that could not say so."""
        own, others = await asyncio.gather(
            self._tell(tenant, name),
            self._access.inquirer.ask(self._kind, tenant, name, self._read),
        )
        parts = others.parts if own is None else (own, *others.parts)
        if parts:
            return Found(parts, others.missing)
        if others.silent == 0:
            raise ApiError(
                Reason.NOT_FOUND, f"No {self._noun} {name!r} of yours is known, or not any more."
            )
        raise ApiError(
            Reason.SERVERS_SILENT,
            f"No {self._noun} {name!r} of yours is known to this server, and not all others have "
            "said whether they know it; retry after the time given.",
        )


def newest(lists: Iterable[list[Dated]]) -> list[Dated]:
    """Of several servers' sequences those that arrived last, in order of arrival."""
    return sorted(chain.from_iterable(lists), key=itemgetter(0))[-MOST_SEQUENCES:]
