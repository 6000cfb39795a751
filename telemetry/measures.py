"""Counters, gauges and histograms as plain values, and their text for Prometheus."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

OTHER = "other"


class Measure(ABC):
    """One family of values, one for each combination of label values."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...] = ()) -> None:
        self.name = name
        self.text = text
        self.labels = labels

    @abstractmethod
    def family(self, common: tuple[str, ...]) -> Any:
        """An empty prometheus_client family whose labels are `common` and then our own."""

    @abstractmethod
    def write(self, family: Any, common: tuple[str, ...]) -> None:
        """Add our values to such a family, under the label values `common`."""


class Counter(Measure):
    """Sums that only grow."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...] = ()) -> None:
        super().__init__(name, text, labels)
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, amount: float, *labels: str) -> None:
        self.values[labels] = self.values.get(labels, 0) + amount

    def family(self, common: tuple[str, ...]) -> Any:
        return CounterMetricFamily(self.name, self.text, labels=common + self.labels)

    def write(self, family: Any, common: tuple[str, ...]) -> None:
        for labels, value in self.values.items():
            family.add_metric(common + labels, value)


class Gauge(Counter):
    """Values that go up and down."""

    def set(self, value: float, *labels: str) -> None:
        self.values[labels] = value

    def reset(self) -> None:
        """Back to 0 for every label seen so far."""
        self.values = dict.fromkeys(self.values, 0)

    def family(self, common: tuple[str, ...]) -> Any:
        return GaugeMetricFamily(self.name, self.text, labels=common + self.labels)


class Histogram(Measure):
    """How often values fell at or below each of `bounds`, and their sum."""

    def __init__(
        self, name: str, text: str, bounds: Sequence[float], labels: tuple[str, ...] = ()
    ) -> None:
        super().__init__(name, text, labels)
        self.bounds = tuple(bounds)
        self.counts: dict[tuple[str, ...], list[int]] = {}
        self.sums: dict[tuple[str, ...], float] = {}

    def observe(self, value: float, *labels: str) -> None:
        counts = self.counts.setdefault(labels, [0] * (len(self.bounds) + 1))
        counts[bisect_left(self.bounds, value)] += 1
        self.sums[labels] = self.sums.get(labels, 0) + value

    def family(self, common: tuple[str, ...]) -> Any:
        return HistogramMetricFamily(self.name, self.text, labels=common + self.labels)

    def write(self, family: Any, common: tuple[str, ...]) -> None:
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        for labels, counts in self.counts.items():
            running = 0
            buckets = []
            for name, count in zip(names, counts, strict=True):
                running += count
                buckets.append((name, running))
            family.add_metric(common + labels, buckets, self.sums[labels])


def text_of(measures: Sequence[Measure]) -> bytes:
    """Prometheus text of measures that belong to no engine."""
    return generate_latest(_Unlabelled(measures))


class _Unlabelled(Collector):
    def __init__(self, measures: Sequence[Measure]) -> None:
        self._measures = measures

    def collect(self) -> Iterable[Metric]:
        for measure in self._measures:
            family: Metric = measure.family(())
            measure.write(family, ())
            yield family


class CappedLabels:
    """The first `cap` values keep their own label; every further one becomes "other"."""

    def __init__(self, cap: int) -> None:
        if cap < 1:
            raise ValueError(f"the cap on labels must be at least 1, not {cap}")
        self._cap = cap
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._seen:
            return value
        if len(self._seen) < self._cap:
            self._seen.add(value)
            return value
        return OTHER
