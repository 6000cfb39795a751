"""What the HTTP edge works with. Built by the composition root, used from one event loop."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from engine.host.engine import Engine
from engine.runtime.text.codec import TextCodec
from gateway.commits import Commits
from gateway.deadlines import TaskDeadlines
from gateway.history import History
from gateway.quota import Quota
from gateway.slots import Slots
from gateway.store_access import StoreAccess
from gateway.workers import Workers
from telemetry.clock import Clock
from telemetry.events import Event
from telemetry.tracing import Tracing
from tenants.auth import Authenticator
from tenants.ledger.ledger import Ledger
from tenants.prices import FREE, Price

FoundT = TypeVar("FoundT")
Search = Callable[[Sequence[Event], str, str], list[FoundT]]


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds of the edge; times in seconds."""

    max_body_bytes: int = 4 << 20
    body_timeout: float = 10.0  # for a whole body
    max_requests: int = 1024  # open calls
    max_tenant_requests: int = 512
    keepalive: float = 15.0  # silence after which a stream gets a comment
    write_timeout: float = 30.0  # after which a caller who does not read is cut off
    workers: int = 2  # threads that parse and tokenise
    domain: str = "tenant"  # between whom a tenant's share is divided (tenants.choices.DOMAINS)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model under the id callers use. `context` is prompt plus output, in tokens.

    `fallback` is what may be asked instead when this one cannot meet a deadline.
    """

    id: str
    engine: Engine
    codec: TextCodec
    history: History
    context: int
    created: int  # Unix seconds
    price: Price = FREE
    fallback: "ServedModel | None" = None


@dataclass(slots=True)
class Gateway:
    """`models` are by id, the preferred one first. `metrics` renders the Prometheus page. While

    `draining`, new work is refused.
    """

    models: Mapping[str, ServedModel]
    access: StoreAccess
    ledger: Ledger
    clock: Clock
    metrics: Callable[[], bytes]
    tracing: Tracing
    limits: EdgeLimits = EdgeLimits()
    draining: bool = False
    slots: Slots = field(init=False)
    workers: Workers = field(init=False)
    quota: Quota = field(init=False)
    task_deadlines: TaskDeadlines = field(default_factory=TaskDeadlines)
    commits: Commits = field(default_factory=Commits)

    def __post_init__(self) -> None:
        self.slots = Slots(self.limits.max_requests, self.limits.max_tenant_requests)
        self.workers = Workers(self.limits.workers)
        self.quota = Quota(self.access.leases, self.clock)

    @property
    def authenticator(self) -> Authenticator:
        return self.access.authenticator

    @property
    def epoch(self) -> int:
        """The instant from which monotonic times count, in Unix ns: to compare those of servers."""
        return self.clock.wall() - self.clock.now()

    async def search(
        self, tenant: str, fold: Search[FoundT], name: str
    ) -> list[tuple[str, FoundT]]:
        """What `fold` finds under `tenant` and `name` in the events of each model, with its id."""
        return [
            (model.id, found)
            for model in self.models.values()
            for found in await self.workers.run(tenant, fold, model.history.events(), tenant, name)
        ]

    def close(self) -> None:
        """Stop the worker threads; what they are at is finished first."""
        self.workers.close()
