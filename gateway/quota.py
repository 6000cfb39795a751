"""A call's share of its tenant's limits: reserved before there is work, settled when it is over."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from engine.core.outputs import Finished
from engine.host.generation import Generation
from gateway.dialect import Dialect
from gateway.errors import ApiError, Reason
from gateway.limit_headers import RawHeaders, Standing
from telemetry.clock import Clock
from telemetry.measures import Counter, Gauge, text_of
from telemetry.units import MILLISECOND
from tenants.book import Reservation, Shortage
from tenants.connection import StoreUnavailable
from tenants.leases import Leases
from tenants.limits import CALL, Amounts, Limit, Measure, spent, worst_case
from tenants.model import Tenant
from tenants.prices import NANOS, Price

log = logging.getLogger("watermaster")

_UNCHECKED = "The tenant's limits cannot be checked at the moment; retry after the time given."


class Quota:
    """Tenants' limits as the edge sees them."""

    def __init__(self, leases: Leases, clock: Clock) -> None:
        self._leases = leases
        self._clock = clock

    async def open(self, tenant: Tenant) -> "Ticket":
        """Begin a call. Raises ApiError 429, or 503 when the limits cannot be checked."""
        return Ticket(self, self._leases, tenant, await self.take(tenant, CALL))

    async def take(self, tenant: Tenant, demand: Amounts) -> Reservation:
        """Reserve `demand`. Raises ApiError 429 or 503."""
        try:
            taken = await self._leases.reserve(tenant, demand)
        except StoreUnavailable:
            raise ApiError(Reason.STORE_UNAVAILABLE, _UNCHECKED) from None
        if isinstance(taken, Shortage):
            raise self._refusal(tenant, taken)
        return taken

    async def meet(self, tenant: Tenant) -> None:
        """Learn how the tenant's limits stand, for its headers; with the store away, do without."""
        try:
            await self._leases.meet(tenant)
        except StoreUnavailable:
            log.debug("the limits of tenant %s cannot be told", tenant.id)

    def headers(self, tenant: Tenant, dialect: Dialect) -> RawHeaders:
        """How the tenant's limits stand; nothing for a tenant without any."""
        standings = self._standings(tenant)
        return dialect.limits(standings, self._clock.wall() // MILLISECOND) if standings else []

    def describe(self, tenant: Tenant) -> list[dict[str, object]]:
        """The same, JSON-ready."""
        return [
            {
                "limit": one.limit.name,
                "amount": _shown(one.limit, one.limit.amount),
                "remaining": _shown(one.limit, one.remaining),
                "reset_ms": one.reset_ms,
            }
            for one in self._standings(tenant)
        ]

    def metrics(self) -> bytes:
        """In Prometheus' text form."""
        counts = self._leases.counts
        shortages = Counter(
            "watermaster_limit_refusals", "Calls that did not fit into a limit", ("limit",)
        )
        for limit, number in counts.shortages.items():
            shortages.add(number, limit)
        renewals = Counter("watermaster_limit_renewals", "Calls to the store that renewed leases")
        renewals.add(counts.exchanges)
        failures = Counter("watermaster_limit_renewal_failures", "Those that the store missed")
        failures.add(counts.failures)
        leased = Gauge(
            "watermaster_limits_on_lease_only",
            "Whether limits go on from what is leased, with the store away",
        )
        leased.set(self._leases.away)
        return text_of((shortages, renewals, failures, leased))

    def _standings(self, tenant: Tenant) -> list[Standing]:
        book = self._leases.book(tenant)
        if book is None:
            return []
        elapsed = book.elapsed_ms(self._clock.now())
        return [Standing(piece.limit, *piece.standing(elapsed)) for piece in book.slices.values()]

    def _refusal(self, tenant: Tenant, shortage: Shortage) -> ApiError:
        piece, limit = shortage.slice, shortage.slice.limit
        book = self._leases.book(tenant)
        elapsed = book.elapsed_ms(self._clock.now()) if book else 0
        remaining, reset_ms = piece.standing(elapsed)
        facts = {
            "limit": limit.name,
            "limit_amount": _shown(limit, limit.amount),
            "remaining": _shown(limit, remaining),
            "requested": _shown(limit, shortage.amount),
        }
        if limit.window.is_budget:
            # What calls do not use of what they reserved comes back when they end.
            if not shortage.hopeless and piece.might_hold(shortage.amount):
                return ApiError(Reason.RATE_LIMIT, _reserved(facts), facts=facts)
            wait = None if shortage.hopeless else reset_ms * MILLISECOND
            return ApiError(Reason.QUOTA, _sentence(facts), facts=facts, retry_after=wait)
        if shortage.hopeless:
            return ApiError(Reason.OVER_LIMIT, facts=facts)
        wait_ms = piece.wait_for(shortage.amount)
        return ApiError(
            Reason.RATE_LIMIT,
            f"The tenant's limit {limit.name} of {limit.amount} is reached; retry after the time "
            "given.",
            facts=facts,
            retry_after=None if wait_ms is None else wait_ms * MILLISECOND,
        )


class Ticket:
    """What one call holds of its tenant's limits. A context manager around all of the call.

    What is used is what the engine says of the sequences that `follow` was told of, even when the
    call is long over; a call that was refused uses nothing.
    """

    def __init__(self, quota: Quota, leases: Leases, tenant: Tenant, held: Reservation) -> None:
        self._quota = quota
        self._leases = leases
        self._tenant = tenant
        self._held = held
        self._covered: dict[Measure, int] = {}
        self._used: dict[Measure, int] = {}
        self._following = 0
        self._closed = False

    async def cover(self, prompt: int, output: int, price: Price) -> None:
        """Reserve the worst case of so many tokens, beyond what is reserved. Raises ApiError."""
        worst = worst_case(prompt, output, price)
        more = {
            measure: amount - self._covered.get(measure, 0)
            for measure, amount in worst.items()
            if amount > self._covered.get(measure, 0)
        }
        if more:
            self._held.extend(await self._quota.take(self._tenant, more))
            self._covered |= {measure: worst[measure] for measure in more}

    def follow(self, generation: Generation, price: Price) -> None:
        """Count what `generation` turns out to use."""
        self._following += 1
        generation.when_over(lambda ends: self._count(ends, price))

    @contextmanager
    def undecided(self) -> Iterator[None]:
        """Settle nothing meanwhile: what is over now may be asked of another engine."""
        self._following += 1
        try:
            yield
        finally:
            self._following -= 1
            self._settle_if_over()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        self._settle_if_over()

    def _count(self, ends: list[Finished], price: Price) -> None:
        self._following -= 1
        if not ends[0].refused:
            for measure, amount in _used(ends, price).items():
                self._used[measure] = self._used.get(measure, 0) + amount
        self._settle_if_over()

    def _settle_if_over(self) -> None:
        """Before the last words of an answer are written: whoever reads them may call again."""
        if not self._following and (self._used or self._closed):
            self._leases.settle(self._held, self._used)


def _used(ends: list[Finished], price: Price) -> Amounts:
    """The prompt counts once, as far as it was processed."""
    prompt = max(end.processed_tokens for end in ends)
    cached = min(prompt, max(end.cached_tokens for end in ends))
    return spent(prompt, cached, sum(end.output_tokens for end in ends), price)


def _sentence(facts: dict[str, object]) -> str:
    return (
        f"The tenant's budget {facts['limit']} of {facts['limit_amount']} has {facts['remaining']} "
        f"left, and this call may use {facts['requested']}."
    )


def _reserved(facts: dict[str, object]) -> str:
    return (
        f"What the tenant's budget {facts['limit']} of {facts['limit_amount']} has left is reserved"
        f" for calls that are open, and this one may use {facts['requested']}; retry after the time"
        " given."
    )


def _shown(limit: Limit, amount: int) -> float:
    return amount / NANOS if limit.measure is Measure.MONEY else amount
