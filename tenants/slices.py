"""The slice of one limit that a replica holds: reserve from it, settle, report, renew. Pure.

The store's account of a limit is `used + what all replicas hold <= limit`, always. A reservation is
charged when it is made and refunded when it is settled, so what a lost replica had reserved stays
charged, until its journals say what was used (`tenants.departed`), and what it merely held comes
back. So that nothing it reserved since its last report is missed, each report says how much may be
reserved until the next one is acknowledged, and that is charged to the lost. Should a lost one
come back after all, its report says what it reserved, and that is charged instead. Charges and
refunds are reported as running totals: a report that is sent twice counts once.
"""

import math
from dataclasses import dataclass, field

from tenants.limits import MINUTE_MS, Limit, Window


@dataclass(frozen=True, slots=True)
class Report:
    """What the store is told of a slice; totals are since the slice was opened.

    `need`: what the replica must have, its own free part included; `spare`: what it could use more;
    `risk`: what it may charge until its next report is acknowledged.
    `using`: reserved now, of a limit on what is held; `open`: of what is charged, by calls that are
    not settled. `acknowledged_*`: totals that the store is
    known to have, for a store that has forgotten the slice. `start`: of the window they are for.
    `opened`: which slice of this limit it is, of all that this replica ever opened.
    """

    limit: Limit
    need: int
    spare: int
    risk: int
    using: int
    charged: int
    acknowledged_charged: int
    refunded: int
    acknowledged_refunded: int
    start: int
    opened: int
    open: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """The store's answer. `start` of the window is in ms of its clock; it `ends_in` so many ms, 0

    where no window ends.

    `held`: what this replica may use. `used`: by everybody, as far as reported. `idle`: what others
    hold and do not use. `recalled`: another replica is short, so nothing is to be held in reserve.
    `replicas`: how many there are, this one included. `open`: of what is used, reserved by calls of
    the other replicas that are not settled. `before`: what this slice had charged in all when it
    was first reported in this window.
    """

    held: int
    used: int
    idle: int
    start: int
    ends_in: int
    recalled: bool
    replicas: int = 1
    open: int = 0
    before: int = 0


@dataclass(slots=True)
class Slice:
    """Amounts are whole: requests, tokens or nanos. `free` may be reserved without asking, and of

    what is spent no more than `allowance` between reports, unless the store is away. `opened`: when
    it was, in monotonic ns; totals are from then.
    """

    limit: Limit
    opened: int
    held: bool = field(init=False)  # whether it is a limit on what is held, which is never spent
    free: int = 0
    allowance: int = 0
    using: int = 0
    open: int = 0  # of what is charged: reserved by calls that are not settled
    charged: int = 0
    refunded: int = 0
    grant: Grant = field(default_factory=lambda: Grant(0, 0, 0, 0, 0, False))
    _denied: int | None = None  # the least amount that the last answer left no room for
    _taken: int = 0  # reserved since the last report
    _peak: int = 0  # the most that was `using` since then
    _recent: int = 0  # like `_taken`, and halved by each report without
    _risk: int = 0  # in the last report
    _acknowledged: tuple[int, int] = (0, 0)  # charged, refunded
    _sent: tuple[int, int] = (0, 0)
    _told: tuple[int, int] = (0, 0)  # `using` and `open` in the last report
    _before: int = 0  # charged when the window began: given back to no other
    _news: int = 0  # refunded of what was charged since the last answered report
    _later: int = 0  # refunded of what was charged since the last report

    def __post_init__(self) -> None:
        self.held = self.limit.window is Window.HELD

    @property
    def changed(self) -> bool:
        """Whether there is something that the store has not been told."""
        totals = (self.charged, self.refunded)
        risky = bool(self._recent) and not self.held  # it is to fall as soon as nothing happens
        held = (self.using, self.open)
        return risky or bool(self._taken) or totals != self._acknowledged or held != self._told

    def follow(self, limit: Limit) -> None:
        """Take over a changed amount. What is lost of it is lost here, until the store says."""
        self._denied = None
        self.free -= max(0, self.limit.amount - limit.amount)
        self.limit = limit

    def available(self, *, alone: bool) -> int:
        """What may be reserved now; `alone` without the store."""
        return self.free if self.held or alone else min(self.free, self.allowance)

    def take(self, amount: int) -> int:
        """Reserve `amount`, which must be free; returns what is charged with it, to settle by."""
        self.free -= amount
        self._taken += amount
        if self.held:
            self.using += amount
            self._peak = max(self._peak, self.using)
        else:
            self.charged += amount
            self.open += amount
            self.allowance -= amount
        return self.charged

    def settle(self, amount: int, used: int, charged: int) -> None:
        """End a reservation of `amount`, with which `charged` was charged in all, and that used

        `used`. Never more than `amount`: what is reserved is the worst case.
        """
        self._denied = None
        if self.held:
            self.using -= amount
            self.free += amount
            return
        self.open -= amount
        if charged > self._before:  # what an ended window was charged is over with it
            self.refunded += amount - used
        if charged > self._acknowledged[0]:
            self._news += amount - used
        if charged > self._sent[0]:
            self._later += amount - used

    def report(self, waiting: int) -> Report:
        """What to send when reservations of `waiting` in all could not be made.

        When others are short, only as much is kept as was used since the last report.
        """
        likely = self._peak - self.using if self.held else self._taken
        self._recent = max(self._taken, self._recent // 2)
        self._risk = 0 if self.held else waiting + 2 * self._recent
        self.allowance = min(self.allowance, self._risk)  # whether this report arrives or not
        self._taken, self._peak = 0, self.using
        if self.grant.recalled:
            self.free = min(self.free, likely)
        self._later = 0
        self._sent, self._told = (self.charged, self.refunded), (self.using, self.open)
        return Report(
            self.limit,
            need=self.using + max(0, self.free) + waiting,
            spare=likely,
            risk=self._risk,
            using=self.using,
            charged=self.charged,
            acknowledged_charged=self._acknowledged[0],
            refunded=self.refunded,
            acknowledged_refunded=self._acknowledged[1],
            start=self.grant.start,
            opened=self.opened,
            open=self.open,
        )

    def may_come_back(self) -> int:
        """What calls that are open, here or elsewhere, may leave over of what they reserved."""
        return self.open + self.grant.open

    def might_hold(self, amount: int) -> bool:
        """Whether `amount` may fit into what is left of the window once open calls have ended."""
        return amount <= self.standing(0)[0] + self.may_come_back()

    def renew(self, grant: Grant) -> None:
        """Take in the answer to the last report; reservations made meanwhile count against it."""
        if grant.start != self.grant.start:
            self._turn(grant)
        self._acknowledged = self._sent
        self._news = self._later
        self._denied = None
        self.grant = grant
        news = self.charged - self._sent[0]
        self.allowance = self._risk - news
        self.free = grant.held - (self.using if self.held else news)

    def _turn(self, grant: Grant) -> None:
        """Another window has begun, and what was refunded is not counted in it yet."""
        self._before = grant.before
        # Else a report arrived whose answer did not; what was refunded of it is not told apart.
        answered = grant.before == self._acknowledged[0]
        self.refunded = self._sent[1] + (self._news if answered else 0)

    def deny(self, amount: int) -> None:
        """Note that the store, asked just now, had no room for `amount`."""
        self._denied = amount if self._denied is None else min(amount, self._denied)

    def denied(self, amount: int) -> bool:
        """Whether asking for `amount` again before the next renewal is of no use."""
        return self._denied is not None and amount >= self._denied

    def standing(self, elapsed: int) -> tuple[int, int]:
        """What everybody together may still use, `elapsed` ms after the last answer, and the

        milliseconds from then until all of the limit can be had again, as far as is known.
        """
        in_use = self._in_use(elapsed)
        remaining = max(0, self.limit.amount - in_use)
        if self.limit.window is Window.MINUTE:
            return remaining, -(-in_use * MINUTE_MS // self.limit.amount)
        return remaining, max(0, self.grant.ends_in - elapsed)

    def wait_for(self, amount: int) -> int | None:
        """Milliseconds until `amount` can be had; None when nothing tells or it is never."""
        if self.limit.window is not Window.MINUTE or amount > self.limit.amount:
            return None
        return max(1, -(-(amount - self.free) * MINUTE_MS // self.limit.amount))

    def short_for(self, amount: int) -> float:
        """How long `amount`, which is not to be had, is not; in ms from the last answer on."""
        if amount > self.limit.amount:
            return math.inf
        refills = self.wait_for(amount)
        if refills is not None:
            return refills
        return 0 if self.might_hold(amount) else self.grant.ends_in

    def _in_use(self, elapsed: int) -> int:
        if self.held:
            return self.grant.used + self.using
        news = self.charged - self._acknowledged[0] - (self.refunded - self._acknowledged[1])
        back = 0
        if self.limit.window is Window.MINUTE:
            back = elapsed * self.limit.amount // MINUTE_MS
        return max(0, self.grant.used + news - back)
