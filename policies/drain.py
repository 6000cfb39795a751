"""When queued work will be done, if flows share the device like fluids.

Under weighted fluid sharing (generalised processor sharing, Parekh and Gallager 1993) every
backlogged flow is served in proportion to its weight. By the time a flow of weight w has received
a, a sibling of weight v and backlog b has received min(b, v·a/w). Their sum is the time that has
passed, in units of work at full speed; the same holds one level up, for the parent and that sum.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp

MEMORY = 45.0  # seconds of waiting over which a departure is remembered, exponentially


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a flow's path: its weight, and (weight, backlog) of each sibling with work."""

    weight: float
    siblings: Sequence[tuple[float, float]]


def drained_by(own: float, levels: Iterable[Level]) -> float:
    """Work the whole device does until a flow has received `own` units, itself included.

    `levels` go from the flow up to below the root. Units are the caller's: device seconds give
    seconds. Monotonic in `own` and in every backlog, and never less than `own`.
    """
    received = own
    for level in levels:
        share = received / level.weight
        received += sum(min(backlog, weight * share) for weight, backlog in level.siblings)
    return received


class Departures:
    """How fast those who wait in a queue have been getting nearer, while it was never empty.

    The fluid knows who waits now, not who will come; what it leaves out shows here. A departure is
    the end of running work of the queue's own, or of a place held in line that nobody came for. It
    counts, with the time since the one before, if somebody waited through all of that time. What
    the process stood still of it does not count, and the rest as what it would have been at the
    usual speed.
    """

    __slots__ = ("last", "lost", "seconds", "sequences", "tokens")

    def __init__(self) -> None:
        self.last = -1  # ns at which the newest left
        self.lost = 0  # ns of standstill until then
        self.sequences = self.tokens = self.seconds = 0.0  # fading

    def observe(
        self, now: int, arrived: int, tokens: int, lost: int = 0, slowness: float = 1.0
    ) -> None:
        """Work with `tokens` prompt tokens left at `now`; the first waiter `arrived` then (ns).

        In all, `lost` ns were standstill until now; lately, work takes `slowness` times as long as
        usual.
        """
        if arrived < self.last:
            seconds = max(0, now - self.last - (lost - self.lost)) / 1e9
            kept = exp(-seconds / MEMORY)
            self.sequences = kept * self.sequences + 1
            self.tokens = kept * self.tokens + tokens
            self.seconds = kept * self.seconds + seconds / slowness
        self.last, self.lost = now, lost


def fair_rates(demands: Sequence[tuple[float, float]], capacity: float) -> list[float]:
    """Weighted max-min shares of `capacity` for (weight, demand) pairs; nobody gets more than

    it asks for, and what one leaves is divided among the others by weight.
    """
    rates = [0.0] * len(demands)
    order = sorted(range(len(demands)), key=lambda i: (demands[i][1] / demands[i][0], i))
    behind = list(accumulate(demands[index][0] for index in reversed(order)))
    for index in order:
        weight, demand = demands[index]
        rates[index] = min(demand, capacity * weight / behind.pop())
        capacity = max(0.0, capacity - rates[index])
    return rates
