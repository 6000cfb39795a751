"""All slices of one tenant on one replica: a call is charged to every limit or to none. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from telemetry.units import MILLISECOND
from tenants.limits import Amounts, Limit
from tenants.slices import Grant, Report, Slice


@dataclass(frozen=True, slots=True)
class Shortage:
    """The limit that a call does not fit into, as it stands."""

    slice: Slice
    amount: int  # asked for

    @property
    def hopeless(self) -> bool:
        """Whether it is more than the limit ever allows."""
        return self.amount > self.slice.limit.amount

    @property
    def lasts(self) -> float:
        """For how long, in milliseconds from the last answer on, as far as is known."""
        return self.slice.short_for(self.amount)

    @property
    def elsewhere(self) -> bool:
        """Whether other replicas hold enough that they do not use."""
        return self.amount - self.slice.free <= self.slice.grant.idle


class Reservation:
    """Amounts taken from slices; settled once, whoever comes first."""

    def __init__(self, entries: list[tuple[Slice, int, int]]) -> None:
        self._entries = entries  # slice, amount, charged with it

    def __bool__(self) -> bool:
        return bool(self._entries)

    def extend(self, more: "Reservation") -> None:
        """Take over what another one holds, to settle it together."""
        self._entries += more.surrender()

    def surrender(self) -> list[tuple[Slice, int, int]]:
        """Leave what is held to whoever asks; nothing is left to settle."""
        entries, self._entries = self._entries, []
        return entries

    def settle(self, used: Amounts) -> bool:
        """Give back what was not used; False if there is nothing to give back any more."""
        entries = self.surrender()
        left: dict[str, int] = {}
        for piece, amount, charged in entries:
            limit = piece.limit
            total = left.get(limit.name, used.get(limit.measure, 0))
            share = min(total, amount)
            left[limit.name] = total - share
            piece.settle(amount, share, charged)
        return bool(entries)


class Book:
    """One tenant's limits on this replica. Times are monotonic ns.

    Without a lease, or after its end, nothing can be reserved.
    """

    def __init__(self, limits: Sequence[Limit], now: int) -> None:
        self.limits: Sequence[Limit] = ()
        self.slices: dict[str, Slice] = {}
        self.used_at = now
        self.renewed = now  # when the last answered report was sent
        self._valid_until = -1
        self._reported: list[Slice] = []
        self.follow(limits, now)

    def follow(self, limits: Sequence[Limit], now: int) -> None:
        """Take over the tenant's limits as they stand now."""
        if limits == self.limits:
            return
        self.limits = limits
        before = self.slices
        self.slices = {}
        for limit in limits:
            piece = before.get(limit.name) or Slice(limit, now)
            piece.follow(limit)
            self.slices[limit.name] = piece

    def reserve(
        self, demand: Amounts, now: int, *, store_away: bool = False
    ) -> Reservation | Shortage:
        """Take `demand` from every slice it concerns, or say which is short for longest."""
        self.used_at = now
        wanted = [
            (piece, demand[piece.limit.measure])
            for piece in self.slices.values()
            if demand.get(piece.limit.measure)
        ]
        valid = now < self._valid_until
        short = [
            Shortage(piece, amount)
            for piece, amount in wanted
            if not valid or piece.available(alone=store_away) < amount
        ]
        if short:
            return max(short, key=_lasts)
        return Reservation([(piece, amount, piece.take(amount)) for piece, amount in wanted])

    def refusal(self, demand: Amounts, *, fresh: bool) -> Shortage | None:
        """A limit that is below `demand` at any time, or that the store has said is used up.

        `fresh`: its last answer still holds.
        """
        short = []
        for piece in self.slices.values():
            amount = demand.get(piece.limit.measure, 0)
            if amount > piece.limit.amount or (fresh and amount and piece.denied(amount)):
                short.append(Shortage(piece, amount))
        return max(short, key=_lasts, default=None)

    @property
    def unknown(self) -> bool:
        """Whether the store was never asked of these limits, or the lease was given up."""
        return self._valid_until < 0 and bool(self.slices)

    @property
    def changed(self) -> bool:
        return any(piece.changed for piece in self.slices.values())

    @property
    def recalled(self) -> bool:
        """Whether others wait for what is free here."""
        return any(p.grant.recalled and p.free > 0 for p in self.slices.values())

    @property
    def alone(self) -> bool:
        """Whether no other replica serves this tenant, as far as is known."""
        return all(piece.grant.replicas == 1 for piece in self.slices.values())

    @property
    def in_use(self) -> bool:
        return any(piece.using for piece in self.slices.values())

    def report(self, waiting: Sequence[Amounts]) -> list[Report]:
        """What to tell the store while `waiting` could not be reserved."""
        self._reported = list(self.slices.values())
        return [
            piece.report(sum(demand.get(piece.limit.measure, 0) for demand in waiting))
            for piece in self._reported
        ]

    def renew(self, grants: Sequence[Grant], sent: int, lease: int) -> None:
        """Take in the answers to the reports made at `sent`, good for `lease` ns from then."""
        for piece, grant in zip(self._reported, grants, strict=True):
            piece.renew(grant)
        self.renewed = sent
        self._valid_until = sent + lease

    def close(self) -> None:
        """Reserve nothing more until the next answer."""
        self._valid_until = -1

    def elapsed_ms(self, now: int) -> int:
        return (now - self.renewed) // MILLISECOND


def _lasts(shortage: Shortage) -> float:
    return shortage.lasts
