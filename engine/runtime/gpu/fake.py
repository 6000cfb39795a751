"""An asynchronous fake device on the CPU: it works when it likes, by a seeded coin.

Work that was handed over may be done at once, later, or only when somebody waits for it; queues
run against each other in any order that their marks allow. Whoever reuses a buffer too early, reads
a result too soon or forgets that one queue depends on another gets wrong numbers here, as on a
card, but the same ones for the same seed.
"""

import time
from collections import deque
from random import Random

import torch
from torch import Tensor

from engine.runtime.gpu.device import Compute, Mark, Work


class FakeMark:
    def __init__(self, queue: "FakeQueue", place: int) -> None:
        self.queue, self.place = queue, place
        self.reached = 0  # ns, on the machine's clock

    def wait(self) -> None:
        self.queue.finish(self.place)

    def nanoseconds_since(self, earlier: Mark) -> int:
        assert isinstance(earlier, FakeMark)  # marks of two devices never meet
        return self.reached - earlier.reached


class FakeQueue:
    """`place` counts the pieces of work ever handed over, `done` those that were done."""

    def __init__(self, chance: Random | None) -> None:
        self._chance = chance
        self._pending: deque[Work] = deque()
        self._place = self._done = 0
        self._fault: Exception | None = None

    def run(self, work: Work) -> None:
        self._add(work)
        if self._chance is None:
            self._do(self._place)
        else:
            some = self._chance.randint(self._done, self._place)
            self._do(self._chance.choice((self._done, some, self._place)))

    def mark(self) -> FakeMark:
        made = FakeMark(self, self._place + 1)

        def reach() -> None:
            made.reached = time.perf_counter_ns()

        self.run(reach)
        return made

    def after(self, mark: Mark) -> None:
        assert isinstance(mark, FakeMark)  # marks of two devices never meet
        self._add(mark.wait)

    def finish(self, place: int) -> None:
        """Do what is left of the work up to `place`; raises a fault, which is final."""
        self._do(place)
        if self._fault is not None:
            raise self._fault

    def _do(self, place: int) -> None:
        while self._done < place and self._fault is None:
            self._done += 1
            try:
                with torch.inference_mode():
                    self._pending.popleft()()
            except Exception as error:  # noqa: BLE001 — told to whoever waits, as a card does
                self._fault = error

    def _add(self, work: Work) -> None:
        self._pending.append(work)
        self._place += 1


class FakeDevice:
    """With `seed` None everything is done at once, as on a device that the host waits for."""

    def __init__(self, seed: int | None = None) -> None:
        self._chance = None if seed is None else Random(seed)

    @property
    def place(self) -> torch.device:
        return torch.device("cpu")

    def queue(self) -> FakeQueue:
        return FakeQueue(self._chance)

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype)

    def capture(self, compute: Compute) -> Compute:
        """A graph's result stands in one place, which the next call overwrites."""
        with torch.inference_mode():
            made = compute()
            # nobody may take for a result what is not computed yet
            result = torch.full_like(made, torch.nan if made.is_floating_point() else -1)
        return lambda: result.copy_(compute())
