"""One tenant on this replica: its book, and the calls that wait for more than it holds."""

import asyncio
import logging
from dataclasses import dataclass

from telemetry.units import SECOND
from tenants.book import Book, Reservation, Shortage
from tenants.connection import StoreUnavailable
from tenants.limits import Amounts, limits_of
from tenants.model import Tenant
from tenants.slices import Report

log = logging.getLogger(__name__)

REPORT = 0.05  # seconds after which the store is told of what was used
BEAT = 0.25  # seconds between renewals, in which others get what they need of what is free here
_ALONE = 1.0  # the same while there are no others: how long a new one waits to be noticed
_PATIENCE = 1.3  # seconds that a call waits for what others hold and are to give back
_NEWS = 0.1  # seconds that it waits for what others have just given back and not yet reported
AWAY = 1.0  # seconds between attempts while the store cannot say how limits stand
_IDLE = 60.0  # seconds after which a tenant's lease is given up
_QUIET = 60.0  # seconds between log lines about the same limit of the same tenant


@dataclass(eq=False, slots=True)
class Waiter:
    """A call that waits; `since` is in monotonic ns."""

    demand: Amounts
    since: int
    asked: bool  # whether a report has said what it waits for
    answer: "asyncio.Future[Reservation | Shortage]"

    def waits_on(self, shortage: Shortage, now: int) -> bool:
        """Whether the store is to be asked again: others may make room, or it was not asked."""
        if not self.asked:
            return True
        if shortage.slice.grant.replicas == 1:
            return False
        return now - self.since < ns(_PATIENCE if shortage.elsewhere else _NEWS)


class Entry:
    """A tenant's book and the calls that wait for more than it holds.

    `lost`: why the store could not read the tenant's book when last asked, if it could not.
    """

    def __init__(self, tenant: Tenant, now: int) -> None:
        self.tenant = tenant
        self.book = Book(limits_of(tenant), now)
        self.waiters: list[Waiter] = []
        self.lost: StoreUnavailable | None = None
        self._lost_at = now
        self._told: dict[str, int] = {}

    def tell(self, shortage: Shortage, now: int) -> None:
        """Log that a limit is reached, now and then."""
        limit = shortage.slice.limit
        if now - self._told.get(limit.name, -ns(_QUIET)) >= ns(_QUIET):
            self._told[limit.name] = now
            log.info("tenant %s has reached its %s of %d", self.tenant.id, limit.name, limit.amount)

    def follow(self, tenant: Tenant, now: int) -> None:
        """Take over the tenant's settings as they stand now."""
        self.tenant = tenant
        self.book.follow(limits_of(tenant), now)

    def refusal(self, demand: Amounts, now: int) -> Shortage | None:
        """What makes it pointless to ask the store for `demand`, if anything does."""
        fresh = self.book.alone and now - self.book.renewed < ns(REPORT)
        return self.book.refusal(demand, fresh=fresh)

    def due(self, now: int) -> bool:
        """Whether there is something to tell or to ask."""
        book = self.book
        if not book.slices:
            return False
        if self.lost:
            return now - self._lost_at >= ns(AWAY)
        urgent = self.waiters or book.changed or book.recalled
        return bool(urgent) or now - book.renewed >= ns(_ALONE if book.alone else BEAT)

    def idle(self, now: int) -> bool:
        busy = self.waiters or self.book.in_use or self.book.changed
        return not busy and now - self.book.used_at > ns(_IDLE)

    def reports(self) -> list[Report]:
        """What to tell the store, with what the waiters wait for."""
        for waiter in self.waiters:
            waiter.asked = True
        return self.book.report([waiter.demand for waiter in self.waiters])

    @property
    def unasked(self) -> bool:
        return any(not waiter.asked for waiter in self.waiters)

    def serve(self, now: int) -> bool:
        """Answer the waiters; whether some wait on."""
        waiting, self.waiters = self.waiters, []
        for waiter in waiting:
            if waiter.answer.done():
                continue
            taken = self.book.reserve(waiter.demand, now)
            if isinstance(taken, Shortage) and waiter.waits_on(taken, now):
                self.waiters.append(waiter)
            else:
                if isinstance(taken, Shortage):
                    taken.slice.deny(taken.amount)
                waiter.answer.set_result(taken)
        return bool(self.waiters)

    def lose(self, problem: str, now: int) -> None:
        """The store cannot read the book: for this tenant alone it is as if it were away."""
        if not self.lost:
            log.error(
                "the store cannot read the limits of tenant %s, whose calls go on from what is "
                "leased: repair or delete wm:limits:%s (%s)",
                *(self.tenant.id, self.tenant.id, problem),
            )
        self.lost, self._lost_at = StoreUnavailable(problem), now
        self.fail(self.lost, now)

    def find(self) -> None:
        """The store has read the book."""
        if self.lost:
            log.info("the store reads the limits of tenant %s again", self.tenant.id)
        self.lost = None

    def fail(self, error: StoreUnavailable, now: int) -> None:
        """Answer the waiters without the store."""
        waiting, self.waiters = self.waiters, []
        for waiter in waiting:
            if waiter.answer.done():
                continue
            taken = self.book.reserve(waiter.demand, now, store_away=True)
            if isinstance(taken, Reservation):
                waiter.answer.set_result(taken)
            else:
                waiter.answer.set_exception(StoreUnavailable(str(error)))


def ns(seconds: float) -> int:
    return round(seconds * SECOND)
