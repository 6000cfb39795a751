"""What was cancelled is remembered for a while, so that what arrives for it later is refused."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from policies.fair_table import FairTable
from telemetry.lineage import Lineage, Scope


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Everything under a scope is refused until `expiry` (ns), but for what `spare` covers."""

    expiry: int
    spare: Scope | None

    def refuses(self, lineage: Lineage) -> bool:
        """Whether new work of `lineage`, which lies under the scope, comes too late."""
        return self.spare is None or not self.spare.covers(lineage)


class Tombstones:
    """At most `capacity` scopes, shared fairly by tenants; each for `ttl` ns since last set."""

    def __init__(self, capacity: int, ttl: int) -> None:
        self._ttl = ttl
        self._stones: FairTable[Scope, Tombstone] = FairTable(capacity)
        self._tasks: Counter[tuple[str, str | None]] = Counter()  # stones of each

    def __len__(self) -> int:
        return len(self._stones)

    def bury(self, scope: Scope, spare: Scope | None, now: int) -> None:
        """Remember `scope` from now on; what was cancelled whole stays so."""
        self._forget_expired(now)
        known = self._stones.get(scope.tenant, scope)
        if known is None:
            self._tasks[scope.tenant, scope.task] += 1
        elif known.spare is None:
            spare = None
        evicted = self._stones.put(scope.tenant, scope, Tombstone(now + self._ttl, spare))
        if evicted is not None:
            self._forgotten(evicted[1])

    def standing(self, scope: Scope, now: int) -> Tombstone | None:
        """The one of exactly this scope."""
        stone = self._stones.get(scope.tenant, scope)
        return stone if stone is not None and stone.expiry > now else None

    def refusing(self, lineage: Lineage, now: int) -> Tombstone | None:
        """One that refuses new work of `lineage`."""
        if (lineage.tenant, lineage.task) not in self._tasks:
            return None
        stones = (self.standing(scope, now) for scope in _scopes_over(lineage))
        return next((stone for stone in stones if stone and stone.refuses(lineage)), None)

    def _forget_expired(self, now: int) -> None:
        while (oldest := self._stones.oldest()) is not None:
            tenant, scope, stone = oldest
            if stone.expiry > now:
                return
            self._stones.drop(tenant, scope)
            self._forgotten(scope)

    def _forgotten(self, scope: Scope) -> None:
        task = (scope.tenant, scope.task)
        self._tasks[task] -= 1
        if not self._tasks[task]:
            del self._tasks[task]


def _scopes_over(lineage: Lineage) -> Iterable[Scope]:
    """Every scope a cancellation of this work may have been given as."""
    return (
        Scope(lineage.tenant, lineage.task, *narrowing)
        for narrowing in product(
            (None, lineage.run), (None, lineage.attempt), (None, lineage.request)
        )
    )
