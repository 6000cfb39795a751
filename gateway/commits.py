"""Which attempt has won each race: as it is said, and so that a second winner is refused at once.

Decided here and not in the kernel because one race may run on several models' engines, each with a
kernel of its own, and all have to be told the same.
"""

from typing import Annotated

from pydantic import WithJsonSchema

from gateway.lineage import ID_SCHEMA
from gateway.parameters import by_name, honoured
from gateway.wire import Wire, parse
from policies.fair_table import FairTable
from telemetry.lineage import Scope

PARAMETERS = by_name(
    (
        honoured("attempt", "Required: the attempt that has won.", nullable=False),
        honoured("run", "Its run, where attempts of several runs share their ids."),
    )
)


Id = Annotated[str, WithJsonSchema(ID_SCHEMA)]  # checked where all ids are


class CommitRequest(Wire):
    attempt: Id
    run: Id | None = None

    def named(self) -> dict[str, str]:
        """The parts that were given."""
        return {"attempt": self.attempt} if self.run is None else self.model_dump()


def parse_commit(body: bytes) -> CommitRequest:
    """Raises ApiError 400 that names the parameter at fault."""
    return parse(CommitRequest, body, PARAMETERS)


class Commits:
    """The first winner named for each task; tenants share the room."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._winners: FairTable[str, Scope] = FairTable(capacity)

    def settle(self, tenant: str, task: str, winner: Scope) -> Scope:
        """The winner that counts: the one named before, or else `winner`."""
        first = self._winners.get(tenant, task)
        if first is None:
            self._winners.put(tenant, task, winner)
        return first or winner

    def correct(self, tenant: str, task: str, winner: Scope) -> None:
        """All servers agree on this winner, whatever was said here."""
        self._winners.put(tenant, task, winner)

    def winner(self, tenant: str, task: str) -> Scope | None:
        """The one named so far."""
        return self._winners.get(tenant, task)
