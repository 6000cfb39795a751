"""An executor that computes nothing and answers at once, with arbitrary tokens.

It is for trying out what stands around a model: clients, limits, and the gateway itself.
"""

import numpy as np

from engine.core.config import KernelConfig
from engine.core.plan import IntArray, Join, LongArray
from engine.sim.executor import SimExecutor
from engine.sim.profile import StepShape

STEP_NS = 1_000  # no step takes no time


class Instant:
    """The cost profile under which every step takes next to nothing."""

    def duration(self, _shape: StepShape) -> int:
        """Nanoseconds that a step of any shape takes."""
        return STEP_NS


class ArbitraryTokens:
    """Token i of a sequence depends on its seed, its prompt's first token and i.

    They come from the upper half of the vocabulary: special tokens, which would end an answer, are
    usually at its beginning.
    """

    def __init__(self, vocab_size: int, max_running: int) -> None:
        self._first = vocab_size // 2
        self._span = vocab_size - self._first
        self._mixed = np.zeros(max_running, np.int64)  # by slot

    def join(self, join: Join) -> None:
        """A sequence enters the batch."""
        mixed = join.sampling.seed * 1_000_003 + int(join.tokens[0]) * 7919
        self._mixed[join.slot] = mixed % self._span

    def draw(self, slots: LongArray, indices: IntArray) -> IntArray:
        """Output token `indices[k]` of the sequence at `slots[k]`, for every k."""
        tokens: IntArray = self._first + (self._mixed[slots] + 31 * indices) % self._span
        return tokens.astype(np.int32)


def instant_executor(kernel: KernelConfig) -> SimExecutor:
    """For an engine of these sizes. Real time is not waited for."""
    tokens = ArbitraryTokens(kernel.vocab_size, kernel.max_running)
    return SimExecutor(Instant(), tokens, lambda _ns: None, block_size=kernel.block_size)
