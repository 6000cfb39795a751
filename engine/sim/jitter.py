"""Step times that scatter, reproducibly."""

import numpy as np

from engine.sim.profile import CostProfile, StepShape

SMALLEST = 0.1  # of the noise-free time
BLOCK = 4096  # draws made at once


class JitteredProfile:
    """Multiplies each step's time by 1 + `share` times a standard normal draw from `seed`."""

    def __init__(self, profile: CostProfile, share: float, seed: int) -> None:
        self.noise_free = profile
        self._share = share
        self._random = np.random.default_rng(seed)
        self._factors: list[float] = []

    def duration(self, shape: StepShape) -> int:
        """Nanoseconds that this step takes; the next step of the same shape differs."""
        if not self._factors:
            draws = self._random.standard_normal(BLOCK)
            self._factors = np.maximum(SMALLEST, 1 + self._share * draws)[::-1].tolist()
        return int(self.noise_free.duration(shape) * self._factors.pop())
