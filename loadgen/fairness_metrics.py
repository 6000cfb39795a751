"""How evenly service was shared: the published window metric, and the range of service gaps."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from loadgen.record import OUTPUT_WEIGHT, PROMPT_WEIGHT, Fate, Path, ServiceLog
from loadgen.scenario import Windows
from telemetry.units import SECOND

FloatArray = npt.NDArray[np.float64]
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WindowTable:
    """Service difference by tick (cost units a second), and the peak of the accumulated gap."""

    ticks: tuple[float, ...]
    peak_gap: float  # cost units, most minus least served since the warm-up, largest at any tick

    @property
    def max(self) -> float:
        return max(self.ticks)

    @property
    def avg(self) -> float:
        return float(np.mean(self.ticks))

    @property
    def var(self) -> float:
        return float(np.var(self.ticks))


@dataclass(frozen=True, slots=True)
class Spans:
    """Served requests as arrays: cost units `amount` spread evenly over [start, end] seconds."""

    client: npt.NDArray[np.int64]
    arrival: FloatArray
    start: FloatArray
    end: FloatArray
    amount: FloatArray

    @classmethod
    def of(cls, fates: Sequence[Fate]) -> "Spans":
        """The requests that were served to their end or in part."""
        served = [f for f in fates if f.first_token is not None and f.ended is not None]
        prompt = np.array([f.request.prompt for f in served], float)
        output = np.array([f.output_tokens for f in served], float)
        return cls(
            client=np.array([f.request.client for f in served], np.int64),
            arrival=np.array([f.request.arrival for f in served], float) / SECOND,
            start=np.array([f.first_token for f in served], float) / SECOND,
            end=np.array([f.ended for f in served], float) / SECOND,
            amount=PROMPT_WEIGHT * prompt + OUTPUT_WEIGHT * output,
        )

    def service(self, left: float, right: float, clients: int) -> FloatArray:
        """Cost units each client was served within [left, right] seconds."""
        overlap = np.clip(np.minimum(right, self.end) - np.maximum(left, self.start), 0, None)
        length = self.end - self.start
        instant = length <= 0  # a single token: all of it at its moment
        inside = (left <= self.start) & (self.start <= right)
        share = np.where(instant, inside, overlap / np.where(instant, 1, length))
        return _by_client(self.client, self.amount * share, clients)

    def demand(self, left: float, right: float, clients: int) -> FloatArray:
        """Cost units each client asked for within [left, right] seconds."""
        inside = (left <= self.arrival) & (self.arrival <= right)
        return _by_client(self.client, self.amount * inside, clients)


def _by_client(client: npt.NDArray[np.int64], amount: FloatArray, clients: int) -> FloatArray:
    return np.bincount(client, weights=amount, minlength=clients).astype(np.float64)


def window_table(fates: Sequence[Fate], clients: int, windows: Windows) -> WindowTable:
    """The service-difference metric of Sheng et al., OSDI 2024 (section 5 and its artifact).

    A tick's difference is the sum over clients of min(most served − s, |demand − s|), with s and
    demand in cost units a second over the window around the tick.
    """
    spans = Spans.of(fates)
    step = (windows.horizon - windows.warm_up) / (windows.ticks + 1)
    differences, gaps = [], []
    for tick in range(1, windows.ticks + 1):
        centre = windows.warm_up + tick * step
        left, right = centre - windows.seconds / 2, centre + windows.seconds / 2
        service = spans.service(left, right, clients) / windows.seconds
        demand = spans.demand(left, right, clients) / windows.seconds
        unmet = np.minimum(service.max() - service, np.abs(demand - service))
        differences.append(float(unmet.sum()))
        since = spans.service(windows.warm_up, centre, clients)
        gaps.append(float(since.max() - since.min()))
    return WindowTable(tuple(differences), max(gaps))


@dataclass(frozen=True, slots=True)
class Gap:
    """The largest range of W_f − W_g over an interval in which both were backlogged."""

    value: float
    pair: tuple[Path, Path] | None


def service_gap(log: ServiceLog) -> Gap:
    """sup|ΔW| over all pairs of siblings and all maximal common intervals of backlog."""
    worst = Gap(0.0, None)
    for first, second in combinations(range(len(log.paths)), 2):
        if log.paths[first][:-1] != log.paths[second][:-1]:
            continue
        common = overlaps(log.backlogs[first], log.backlogs[second])
        if not common:
            continue
        value = _widest(log.service[:, first] - log.service[:, second], common)
        if value > worst.value:
            worst = Gap(value, (log.paths[first], log.paths[second]))
    return worst


def overlaps(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The maximal intervals of positive length common to two ascending lists of intervals."""
    found = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            found.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def _widest(difference: FloatArray, intervals: list[Interval]) -> float:
    """The largest range of `difference` within one of `intervals`, ends included."""
    padded = np.append(difference, difference[-1])  # reduceat takes no index past the end
    edges = np.array([(start, end + 1) for start, end in intervals])
    # Intervals may touch: those after the first reduction of each pair are gaps, left out.
    high = np.maximum.reduceat(padded, edges.ravel())[::2]
    low = np.minimum.reduceat(padded, edges.ravel())[::2]
    return float((high - low).max())
