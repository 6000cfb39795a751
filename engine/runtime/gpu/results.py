"""How a step's draws come back: copied into pinned memory on the device's own time."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import IntArray, LongArray, RowFailure, StepPlan, StepResult
from engine.runtime.gpu.device import Device, Mark
from engine.runtime.sampler import DrawInputs, Drawn, Draws, collect


@dataclass(frozen=True, slots=True)
class Ticket:
    """A launched step. Row `sampled[i]` draws the token at `places[i]` of the slot `slots[i]`,

    whose sequence is its `tenures[i]`th. It was held up by its transfers from `began` to `moved`.
    `rejected` are failures known before the step ran.
    """

    plan: StepPlan
    began: Mark
    moved: Mark | None
    ended: Mark
    sampled: LongArray
    slots: LongArray
    places: IntArray
    tenures: LongArray
    rejected: dict[int, RowFailure]
    drawn: Callable[[], Draws]

    def result(self) -> tuple[StepResult, IntArray]:
        """Wait for the step; its result, and the tokens drawn by each of `sampled`."""
        self.ended.wait()
        drawn = self.drawn()
        failures = {int(self.sampled[i]): failure for i, failure in drawn.failures.items()}
        failures |= self.rejected
        counts = np.zeros(len(self.plan.slots), np.int32)
        counts[self.sampled] = 1
        counts[list(failures)] = 0
        tokens = drawn.tokens.astype(np.int32)
        result = StepResult(
            step=self.plan.step,
            token_counts=counts,
            tokens=tokens[counts[self.sampled] > 0],
            duration=max(1, self.ended.nanoseconds_since(self.began)),
            stall=self.moved.nanoseconds_since(self.began) if self.moved else 0,
            logprobs={
                int(self.sampled[i]): (logprob,)
                for i, logprob in drawn.logprobs.items()
                if counts[self.sampled[i]]
            },
            failures=failures,
        )
        return result, tokens


class Landing:
    """Pinned memory for the draws of two steps in flight; they take turns."""

    def __init__(self, device: Device, rows: int) -> None:
        self._device = device
        self._buffers = tuple(device.pinned(3 * rows, torch.int32) for _ in range(2))

    def expect(
        self, inputs: DrawInputs, vocab: int, turn: int
    ) -> tuple[Callable[[Drawn], None], Callable[[], Draws]]:
        """What the device is to do with its draws, and how to read them once it is done."""
        rows = len(inputs.slots)
        landed = self._buffers[turn % 2][: 3 * rows]
        wanting = inputs.logprobs[inputs.logprobs >= 0]
        width = min(int(wanting.max(initial=0)), vocab)
        # a rare wish: memory of its own, which torch's pinned allocator hands out again
        values = self._device.pinned(len(wanting) * (1 + width), torch.float32)
        ids = self._device.pinned(len(wanting) * width, torch.int64)

        def land(drawn: Drawn) -> None:
            bits = (drawn.best.view(torch.int32), drawn.open.view(torch.int32))
            _copy(torch.stack((drawn.tokens.int(), *bits)), landed)
            if drawn.logprobs is not None and drawn.top is not None:
                _copy(drawn.logprobs, values)
                _copy(drawn.top, ids)

        def read() -> Draws:
            tokens, best, open_ = landed.view(3, rows)
            found = Drawn(tokens, best.view(torch.float32), open_.view(torch.float32))
            if count := len(wanting):
                shaped = values.view(count, 1 + width), ids.view(count, width)
                found = Drawn(found.tokens, found.best, found.open, *shaped)
            return collect(found, inputs)

        return land, read


def _copy(source: Tensor, target: Tensor) -> None:
    target.copy_(source.reshape(-1), non_blocking=True)
