"""Cancellation identities: who a piece of work belongs to, at every hop."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lineage:
    """tenant > task > run > attempt > request; a sequence id is added by the engine.

    A task is the caller's goal, a run one execution of a workflow, an attempt one try of a
    model call, a request one gateway call. Ids are compared whole, never by prefix. `key` is the
    public id of the API key that called, for the account; it takes no part in cancellation.
    """

    tenant: str
    task: str
    run: str
    attempt: str
    request: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a cancellation covers: a tenant's task, narrowed by each part that is not None."""

    tenant: str
    task: str | None = None
    run: str | None = None
    attempt: str | None = None
    request: str | None = None

    def covers(self, lineage: Lineage) -> bool:
        """Whether `lineage` lies under this scope."""
        return (
            self.tenant == lineage.tenant
            and self.task in (None, lineage.task)
            and self.run in (None, lineage.run)
            and self.attempt in (None, lineage.attempt)
            and self.request in (None, lineage.request)
        )
