"""Open-loop arrival processes."""

from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Phase:
    """Arrivals of one client for a while, in requests and seconds.

    `poisson` has independent gaps, `uniform` equal ones from a random start on. With `rate_to` the
    rate climbs (or falls) in a straight line over the phase. With `on` and `off`, what falls into
    the silent parts is left out. `seconds` None lasts as long as the scenario.
    """

    rate: float
    process: Literal["poisson", "uniform"] = "poisson"
    rate_to: float | None = None
    on: float | None = None
    off: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for rate in (self.rate, self.rate if self.rate_to is None else self.rate_to):
            if not 0 < rate < inf:
                raise ValueError("a rate must be finite and above 0")
        if (self.on is None) != (self.off is None):
            raise ValueError("on and off go together")
        if self.on is not None and self.off is not None and (self.on <= 0 or self.off <= 0):
            raise ValueError("on and off must be above 0")
        if self.seconds is not None and self.seconds <= 0:
            raise ValueError(f"seconds must be above 0, not {self.seconds}")


def arrival_times(
    phases: tuple[Phase, ...], duration: float, scale: float, random: np.random.Generator
) -> FloatArray:
    """Instants in seconds, ascending, within [0, duration). `scale` multiplies every rate."""
    parts = []
    start = 0.0
    for phase in phases:
        seconds = duration - start if phase.seconds is None else phase.seconds
        seconds = min(seconds, duration - start)
        if seconds <= 0:
            break
        times = _within(phase, seconds, scale, random)
        if phase.on is not None and phase.off is not None:
            times = times[times % (phase.on + phase.off) < phase.on]
        parts.append(start + times)
        start += seconds
    return np.concatenate(parts) if parts else np.empty(0)


def _within(phase: Phase, seconds: float, scale: float, random: np.random.Generator) -> FloatArray:
    """Arrivals in [0, seconds): unit-rate arrivals seen through the inverse of the mean count."""
    first = phase.rate * scale
    last = first if phase.rate_to is None else phase.rate_to * scale
    expected = seconds * (first + last) / 2
    counts: FloatArray
    if phase.process == "uniform":
        counts = random.random() + np.arange(np.ceil(expected), dtype=np.float64)
    else:
        most = int(expected + 10 * np.sqrt(expected) + 20)
        counts = np.cumsum(random.exponential(1.0, most))
    counts = counts[counts < expected]
    slope = (last - first) / seconds
    if slope == 0:
        return counts / first
    times: FloatArray = (np.sqrt(first * first + 2 * slope * counts) - first) / slope
    return times
