"""Clocks. Everything below the edge takes time as an argument; only the edge owns a clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic and wall time, both in nanoseconds."""

    def now(self) -> int:
        """Monotonic nanoseconds; the only time deadlines are compared with."""
        ...

    def wall(self) -> int:
        """Nanoseconds since the Unix epoch; for people and for the wire."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> int:
        return time.monotonic_ns()

    def wall(self) -> int:
        return time.time_ns()


class VirtualClock:
    """A clock that moves only when told to; used by the simulator and by tests."""

    def __init__(self, start: int = 0, epoch: int = 0) -> None:
        self._now = start
        self._epoch = epoch - start

    def now(self) -> int:
        return self._now

    def wall(self) -> int:
        return self._epoch + self._now

    def advance(self, nanoseconds: int) -> None:
        """Move forward; time never runs backwards."""
        if nanoseconds < 0:
            raise ValueError(f"a clock cannot go back by {-nanoseconds} ns")
        self._now += nanoseconds

    def advance_to(self, instant: int) -> None:
        """Move forward to `instant` (monotonic ns); an instant already past changes nothing."""
        self._now = max(self._now, instant)
