"""How much work each tenant asks for, and how much of the device one of them may have."""

from collections import OrderedDict
from math import exp, inf

from policies.drain import fair_rates

MEMORY = 60.0  # seconds over which an arrival is remembered, exponentially


class OfferedLoad:
    """Device seconds per second asked for by each of at most `capacity` tenants.

    Refused requests count too, whatever for, and who returns to a promised place only once. The
    least recently heard of are forgotten first.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._loads: OrderedDict[str, tuple[int, float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._loads)

    def observe(self, tenant: str, weight: float, now: int, cost: float) -> None:
        """A request that costs `cost` device seconds arrived at `now` (ns)."""
        load = self.of(tenant, now) + cost / MEMORY
        self._loads[tenant] = (now, weight, load)
        self._loads.move_to_end(tenant)
        if len(self._loads) > self._capacity:
            self._loads.popitem(last=False)

    def of(self, tenant: str, now: int) -> float:
        """What a tenant asks for at `now`."""
        if tenant not in self._loads:
            return 0.0
        seen, _, load = self._loads[tenant]
        return load * exp(-(now - seen) / 1e9 / MEMORY)

    def rate_for(self, tenant: str, weight: float, capacity: float, now: int) -> float:
        """What `tenant` may use of `capacity`, sharing by weight with what the others ask for."""
        others = [
            (other, self.of(name, now))
            for name, (_, other, _) in self._loads.items()
            if name != tenant
        ]
        return fair_rates([(weight, inf), *others], capacity)[0]
