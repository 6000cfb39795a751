"""Places promised to those who were refused: a Retry-After that is kept.

A refusal with a wait books a place in the ledger of its flow, due when the wait is over. Whoever
returns then claims it and goes before fresh arrivals of that flow. Places that nobody claims lapse.
The ledger is bounded, and all of it is a function of the calls made and the times passed in.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from telemetry.units import SECOND

SLACK = 64  # claimed places kept in the heap before they are swept out
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromiseConfig:
    """`grace` (seconds) is how long a due place is kept, `longest` the longest wait promised.
    `per_flow` and `total` bound the places; 0 promises nothing.
    """

    grace: float = 2.0
    longest: float = 60.0
    per_flow: int = 256
    total: int = 4096

    def __post_init__(self) -> None:
        for name in ("grace", "longest", "per_flow", "total"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Promise:
    """A place for `sequences` choices with `tokens` prompt tokens, due at `due` (monotonic ns).

    It was `booked` when its caller was refused. `names` are the identities under which a return is
    recognised; without any, it is by being a retry at all.
    """

    number: int
    flow: Path
    names: tuple[str, ...]
    booked: int
    due: int
    sequences: int
    tokens: int


@dataclass(slots=True)
class Tally:
    """Sequences and prompt tokens of the places booked below one node of the flow tree."""

    sequences: int = 0
    tokens: int = 0

    def add(self, sequences: int, tokens: int) -> None:
        """Count so many more."""
        self.sequences += sequences
        self.tokens += tokens


class PromiseLedger:
    """Booked places, by flow and in the order in which they lapse."""

    def __init__(self, config: PromiseConfig) -> None:
        self._config = config
        self._next = 1
        self._flows: dict[Path, OrderedDict[int, Promise]] = {}
        self._tallies: dict[Path, Tally] = {}
        self._by_due: list[tuple[int, int, Path]] = []  # a heap; claimed places stay until due
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def tally(self, path: Path) -> Tally:
        """What is booked for a node of the flow tree and all below it."""
        return self._tallies.get(path) or Tally()

    def below(self, path: Path) -> list[Promise]:
        """The places booked for a node of the tree and all below it, the first due first."""
        if path not in self._tallies:
            return []
        flows = (flow for flow in self._flows if flow[: len(path)] == path)
        return sorted((p for flow in flows for p in self._flows[flow].values()), key=_due_first)

    def of(self, flow: Path) -> Iterator[Promise]:
        """The places booked for a flow, in the order of booking."""
        booked = self._flows.get(flow)
        return iter(()) if booked is None else iter(booked.values())

    def book(
        self, flow: Path, names: tuple[str, ...], due: int, now: int, sequences: int, tokens: int
    ) -> Promise | None:
        """Book a place; None when the wait is too long or the ledger is full."""
        config = self._config
        booked = self._flows.get(flow)
        if (
            due - now > config.longest * SECOND
            or (booked is not None and len(booked) >= config.per_flow)
            or self._count >= config.total
        ):
            return None
        promise = Promise(self._next, flow, names, now, due, sequences, tokens)
        self._next += 1
        self._flows.setdefault(flow, OrderedDict())[promise.number] = promise
        self._count += 1
        self._add(promise, 1)
        heappush(self._by_due, (due, promise.number, flow))
        if len(self._by_due) > 2 * self._count + SLACK:
            self._by_due = [entry for entry in self._by_due if self._booked(entry) is not None]
            heapify(self._by_due)
        return promise

    def find(self, flow: Path, names: tuple[str, ...]) -> Promise | None:
        """The place due first among those booked under one of `names`, due or not."""
        known = (p for p in self.of(flow) if not set(names).isdisjoint(p.names))
        return min(known, key=_due_first, default=None)

    def claim(self, flow: Path, names: tuple[str, ...], now: int, *, retry: bool) -> Promise | None:
        """Take the place of a caller who returned; None if there is none for it that is due.

        A retry whose names are unknown takes the nameless place that has been due for longest.
        """
        found = self.find(flow, names)
        if found is None and retry:
            found = min((p for p in self.of(flow) if not p.names), key=_due_first, default=None)
        if found is None or found.due > now:
            return None
        self._remove(found)
        return found

    def lapse(self, now: int) -> list[Promise]:
        """Give up, and return, the places that nobody claimed in time."""
        limit = now - int(self._config.grace * SECOND)
        over = []
        while self._by_due and self._by_due[0][0] < limit:
            promise = self._booked(heappop(self._by_due))
            if promise is not None:
                self._remove(promise)
                over.append(promise)
        return over

    def _booked(self, entry: tuple[int, int, Path]) -> Promise | None:
        _, number, flow = entry
        booked = self._flows.get(flow)
        return None if booked is None else booked.get(number)

    def _remove(self, promise: Promise) -> None:
        booked = self._flows[promise.flow]
        del booked[promise.number]
        if not booked:
            del self._flows[promise.flow]
        self._count -= 1
        self._add(promise, -1)

    def _add(self, promise: Promise, sign: int) -> None:
        for depth in range(1, len(promise.flow) + 1):
            path = promise.flow[:depth]
            tally = self._tallies.setdefault(path, Tally())
            tally.add(sign * promise.sequences, sign * promise.tokens)
            if not tally.sequences:
                del self._tallies[path]


def _due_first(promise: Promise) -> tuple[int, int]:
    return promise.due, promise.number
