"""Tenants' limits on this replica: reserve locally, ask the store when short, renew in the back.

One call to the store renews all tenants that need it; while one is under way the next collects.
With the store away, what is leased may be used until the lease is over, and no more than that; so
it is for a tenant whose book in the store cannot be read.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from telemetry.clock import Clock
from tenants.book import Book, Reservation, Shortage
from tenants.connection import Connection, StoreUnavailable
from tenants.departed import Departed
from tenants.lease_entry import AWAY, BEAT, REPORT, Entry, Waiter, ns
from tenants.limits import Amounts
from tenants.model import Tenant
from tenants.slices import Grant, Report

log = logging.getLogger(__name__)

_AGAIN = 0.02  # seconds until the store is asked again for what others are to give back
_KEPT_MS = 32 * 86_400_000  # longer than any window


@dataclass(slots=True)
class Counts:
    """What happened so far."""

    exchanges: int = 0
    failures: int = 0
    shortages: Counter[str] = field(default_factory=Counter)  # by limit


class Leases:
    """Used from one event loop, on which `run` must be running. `lease` is in seconds, above 1."""

    def __init__(
        self, connection: Connection, clock: Clock, departed: Departed, lease: float
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._replica = departed.replica
        self._departed = departed
        self._lease = lease
        self._entries: dict[str, Entry] = {}
        self._calls = 0
        self._work = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._away: StoreUnavailable | None = None
        self.counts = Counts()

    @property
    def away(self) -> bool:
        """Whether the store did not answer last time."""
        return self._away is not None

    def book(self, tenant: Tenant) -> Book | None:
        """What is known of a tenant's limits, if it has any and used them lately."""
        entry = self._entries.get(tenant.id)
        return entry.book if entry else None

    async def reserve(self, tenant: Tenant, demand: Amounts) -> Reservation | Shortage:
        """Take `demand` from every limit of the tenant, or say which one is short.

        Raises StoreUnavailable when more is needed than is leased and the store does not say more.
        """
        now = self._clock.now()
        entry = self._entry(tenant, now)
        if not entry.waiters:  # nobody jumps the queue
            taken = entry.book.reserve(demand, now, store_away=self.away or bool(entry.lost))
            if isinstance(taken, Reservation):
                if taken:
                    self._wake_in(REPORT)
                return taken
        answer = entry.refusal(demand, now) or await self._ask(entry, demand, now)
        if isinstance(answer, Shortage):
            self.counts.shortages[answer.slice.limit.name] += 1
            entry.tell(answer, now)
        return answer

    async def meet(self, tenant: Tenant) -> None:
        """Have the tenant's limits known here. Raises StoreUnavailable."""
        now = self._clock.now()
        entry = self._entry(tenant, now)
        if entry.book.unknown:
            await self._ask(entry, {}, now)

    def settle(self, reservation: Reservation, used: Amounts) -> None:
        """Give back what was not used, unless that was done before."""
        if reservation.settle(used):
            self._wake_in(REPORT)

    async def run(self) -> None:
        """Keep the store told, for ever; cancel it to end."""
        try:
            while True:
                await self._rest()
                now = self._clock.now()
                self._forget(now)
                due = {name: entry for name, entry in self._entries.items() if entry.due(now)}
                if due:
                    await self._exchange(due, leaving=[n for n, e in due.items() if e.idle(now)])
        finally:  # nobody may wait for what will not come, whatever ended it
            self._fail(StoreUnavailable("limits are not renewed any more"))

    async def close(self) -> None:
        """Give up all leases, after `run` has ended."""
        self._disarm()
        self._away = None
        if self._entries:
            await self._exchange(self._entries, leaving=list(self._entries))

    def _entry(self, tenant: Tenant, now: int) -> Entry:
        entry = self._entries.get(tenant.id)
        if entry is None:
            entry = self._entries[tenant.id] = Entry(tenant, now)
        elif entry.tenant is not tenant:  # read anew, and perhaps changed
            entry.follow(tenant, now)
        return entry

    async def _ask(self, entry: Entry, demand: Amounts, now: int) -> Reservation | Shortage:
        lost = self._away or entry.lost
        if lost:
            raise StoreUnavailable(str(lost))
        answer: asyncio.Future[Reservation | Shortage] = asyncio.get_running_loop().create_future()
        entry.waiters.append(Waiter(demand, now, asked=False, answer=answer))
        self._work.set()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                result = answer.result()  # it came while we were being cancelled
                if isinstance(result, Reservation):
                    self.settle(result, {})
            raise

    async def _rest(self) -> None:
        """Until there is work, or it is time for a sign of life."""
        pause = AWAY if self._away else BEAT
        try:
            async with asyncio.timeout(pause if self._entries else None):
                await self._work.wait()
        except TimeoutError:
            pass
        self._work.clear()

    def _wake_in(self, seconds: float) -> None:
        if self._alarm is None and not self._away:
            self._alarm = asyncio.get_running_loop().call_later(seconds, self._ring)

    def _disarm(self) -> None:
        if self._alarm:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self) -> None:
        self._alarm = None
        self._work.set()

    async def _exchange(self, entries: Mapping[str, Entry], leaving: Collection[str]) -> None:
        self._disarm()  # what it is for is told now; soon again, there would be little to tell
        sent = self._clock.now()
        entries = dict(entries)
        for name in leaving:
            entries[name].book.close()
        try:
            answers = await self._call(entries, leaving)
        except StoreUnavailable as error:
            self._lose(error)
            return
        self._find()
        for (name, entry), grants in zip(entries.items(), answers, strict=True):
            left = name in leaving
            if isinstance(grants, str):
                entry.lose(grants, self._clock.now())
            else:
                entry.find()
                entry.book.renew(grants, sent, 0 if left else ns(self._lease))
            if left:
                self._drop(name, entry)
            elif not entry.lost:
                self._serve(entry)

    def _serve(self, entry: Entry) -> None:
        """Answer who waits from what was just granted, and see that the rest is asked for."""
        if entry.serve(self._clock.now()) or entry.book.recalled:
            self._wake_in(_AGAIN)
            if entry.unasked:
                self._work.set()
        elif entry.book.changed:
            self._wake_in(REPORT)

    def _forget(self, now: int) -> None:
        """Drop the tenants without limits that have not called for long."""
        for name, entry in list(self._entries.items()):
            if not entry.book.slices and entry.idle(now):
                del self._entries[name]

    def _drop(self, name: str, entry: Entry) -> None:
        if entry.waiters or entry.book.changed:
            self._work.set()  # it was wanted again meanwhile
        else:
            del self._entries[name]

    async def _call(
        self, entries: Mapping[str, Entry], leaving: Collection[str]
    ) -> list[list[Grant] | str]:
        """What each is granted, or what is wrong with its book. Raises StoreUnavailable."""
        self._calls += 1
        books = [
            json.dumps(
                [
                    self._calls,
                    name in leaving,
                    [as_row(report) for report in entry.reports()],
                ]
            )
            for name, entry in entries.items()
        ]
        complete = json.dumps([self._departed.former, self._departed.names])
        lease, kept = str(round(self._lease * 1000)), str(_KEPT_MS)
        answers = await self._connection.run(
            "lease",
            [f"wm:limits:{name}" for name in entries],
            [self._replica.name, self._replica.place, lease, kept, complete, *books],
        )
        self.counts.exchanges += 1
        return [
            rows if isinstance(rows, str) else [as_grant(row) for row in rows] for rows in answers
        ]

    def _lose(self, error: StoreUnavailable) -> None:
        if self._away is None:
            log.warning("limits go on from what is leased, for up to %g s: %s", self._lease, error)
        self.counts.failures += 1
        self._fail(error)

    def _fail(self, error: StoreUnavailable) -> None:
        self._away = error
        for entry in self._entries.values():
            entry.fail(error, self._clock.now())

    def _find(self) -> None:
        if self._away is not None:
            log.info("the store is back: limits are renewed")
        self._away = None


def as_row(report: Report) -> list[object]:
    """In the order of FIELDS in the script."""
    limit = report.limit
    return [
        limit.name,
        limit.measure,
        limit.window,
        limit.amount,
        report.need,
        report.spare,
        report.risk,
        report.using,
        report.charged,
        report.acknowledged_charged,
        report.refunded,
        report.acknowledged_refunded,
        report.start,
        report.open,
        report.opened,
    ]


def as_grant(row: list[int]) -> Grant:
    """The script's answer for one slice."""
    held, used, idle, start, ends_in, recalled, replicas, still_open, before = row
    return Grant(held, used, idle, start, ends_in, bool(recalled), replicas, still_open, before)
