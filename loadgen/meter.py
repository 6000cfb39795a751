"""How much device time goes into computing again."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from engine.sim.profile import CostProfile, StepShape, noise_free


class ReworkMeter:
    """A cost profile that notes what each step would have cost without its rework.

    `recompute` is by how much positions that were computed before lengthened steps, in nanoseconds
    of the profile without jitter.
    """

    def __init__(self, profile: CostProfile) -> None:
        self._profile = profile
        self.noise_free = noise_free(profile)
        self._launched: deque[StepShape] = deque()
        self.recompute = 0

    def duration(self, shape: StepShape) -> int:
        """Nanoseconds that a step of this shape takes; it is about to be launched."""
        self._launched.append(shape)
        return self._profile.duration(shape)

    def committed(self, recomputed: int, resumed: Sequence[int] = ()) -> None:
        """The oldest launched step was committed; so many of its positions were rework.

        `resumed` are the lengths of the sequences that it brought back to where they had been:
        without the rework each would have been one more that decodes.
        """
        shape = self._launched.popleft()
        if not recomputed:
            return
        left = max(0, shape.prefill_tokens - recomputed - len(resumed))
        context = shape.prefill_context * left // max(1, shape.prefill_tokens)
        fresh = replace(
            shape,
            prefill_tokens=left,
            prefill_context=context,
            decode_sequences=shape.decode_sequences + len(resumed),
            context_tokens=shape.context_tokens + sum(resumed),
        )
        self.recompute += self.noise_free.duration(shape) - self.noise_free.duration(fresh)
