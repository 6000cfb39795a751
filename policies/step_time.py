"""How long a step will take, learned online from the steps that ran.

A step is bound either by memory traffic or by arithmetic, so its time is the larger of two pieces,
each linear in what the step holds. Both are fitted by weighted recursive least squares (Ljung,
System Identification, 1999, section 11.2) on relative errors. A step teaches the piece that
explains it best (k-plane clustering, Bradley and Mangasarian 2000), and any piece that claims more
time than was measured, since the larger one would have been believed.

The pieces remember a thousand steps, but what else runs on a machine changes its speed within
seconds. So what they leave unexplained is followed quickly by one factor for all steps, the
exponentially weighted mean of its logarithm. As much of that as errors that have nothing to do with
each other would come to is not believed (soft thresholding, Donoho 1995); what is believed is taken
out of the times from which the pieces learn.
"""

from dataclasses import dataclass, field
from math import copysign, exp, log, sqrt

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

# Typical sizes of the features, so that no coefficient dwarfs another numerically.
SCALES = (1.0, 1.0, 1.0, 512.0, 262_144.0, 32.0, 8192.0)
FORGETTING = 0.999  # weight of a step one step later
UNSURE = 1e4  # initial variance of a coefficient, in units of relative error squared
OVERCLAIM = 0.02  # a piece this much above the measured time is corrected
OUTLIER = 5.0  # typical errors above the prediction at which a step is set aside: a hiccup
LEAST_OUTLIER = 0.25  # and never below this excess, as a share of its time
MOST_SET_ASIDE = 8  # of a kind in a row; then the device has changed, until one is not slow
WARM_UP = 32  # steps before any counts as an outlier
KNOWN = 8  # steps of a kind before one of it does
ERROR_WEIGHT = 0.02  # of a new step in the running mean of errors
SPEED_WEIGHT = 0.15  # of a new step in the speed of lately
MOST_SPEED = log(2.0)  # by which one step may differ from that
CHANCE = 2 * sqrt(SPEED_WEIGHT / (2 - SPEED_WEIGHT))  # typical errors: two of such a mean's own


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computes. `prefill_context` sums, over prompt slices, tokens × their mean

    position; `context_tokens` sums the lengths of the decoding sequences.
    """

    prefill_tokens: int = 0
    prefill_context: float = 0.0
    decode_sequences: int = 0
    context_tokens: int = 0

    @property
    def kind(self) -> int:
        """0 for a step that only decodes, 1 for one that only prefills, 2 for both."""
        if not self.prefill_tokens:
            return 0
        return 2 if self.decode_sequences else 1

    def features(self) -> tuple[float, ...]:
        """Scaled features: a constant, one each for steps that only prefill or that mix, and the

        four amounts.
        """
        kind = self.kind
        return (
            1.0,
            1.0 if kind == 1 else 0.0,
            1.0 if kind == 2 else 0.0,
            self.prefill_tokens / SCALES[3],
            self.prefill_context / SCALES[4],
            self.decode_sequences / SCALES[5],
            self.context_tokens / SCALES[6],
        )


@dataclass(slots=True)
class _Piece:
    """One linear piece: its coefficients as floats for quick prediction, and their covariance."""

    weights: list[float] = field(default_factory=lambda: [0.0] * len(SCALES))
    covariance: Vector = field(default_factory=lambda: np.eye(len(SCALES)) * UNSURE)

    def predict(self, features: tuple[float, ...]) -> float:
        # Asked several times for each submission, where a loop over so few takes twice as long.
        w, x = self.weights, features
        first_four = w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3]
        return first_four + w[4] * x[4] + w[5] * x[5] + w[6] * x[6]

    def learn(self, features: tuple[float, ...], seconds: float) -> None:
        """Move towards a measured time; errors count relative to it."""
        x = np.asarray(features) / seconds
        gain = self.covariance @ x
        spread = FORGETTING + float(x @ gain)
        error = 1.0 - float(x @ np.asarray(self.weights))
        self.weights = (np.asarray(self.weights) + gain * (error / spread)).tolist()
        self.covariance -= gain[:, None] * (gain / spread)
        self.covariance /= FORGETTING
        self._bound()

    def _bound(self) -> None:
        """Forgetting inflates directions that no step excites; keep them where they started."""
        largest = float(self.covariance.trace())
        if largest > UNSURE * len(SCALES):
            self.covariance *= UNSURE * len(SCALES) / largest


class StepTimeModel:
    """Predicts seconds for a `StepWork`; call `observe` after every step. Deterministic."""

    def __init__(self) -> None:
        self._memory = _Piece()
        self._compute = _Piece()
        self._seen = 0
        self._known = [0, 0, 0]  # steps learned from, by kind
        self._set_aside = [0, 0, 0]
        self._error = 0.0
        self._drift = 0.0  # log of what steps take lately over what the pieces say
        self._slowness = 1.0  # what of that is believed

    @property
    def steps(self) -> int:
        """Steps learned from so far."""
        return self._seen

    @property
    def error(self) -> float:
        """Running mean of the relative error of predictions, outliers excluded."""
        return self._error

    @property
    def slowness(self) -> float:
        """How many times as long as usual steps take lately."""
        return self._slowness

    def predict(self, work: StepWork) -> float:
        """Seconds this step will take; 0 before anything was observed."""
        return self._slowness * self._claimed(work.features())

    def _claimed(self, features: tuple[float, ...]) -> float:
        """Seconds by the two pieces."""
        return max(self._memory.predict(features), self._compute.predict(features), 0.0)

    def observe(self, work: StepWork, seconds: float) -> bool:
        """Learn from a step that took `seconds`; False if it was set aside as an outlier."""
        if seconds <= 0:
            raise ValueError(f"a step takes more than 0 seconds, not {seconds}")
        features = work.features()
        excess = 1.0 - self.predict(work) / seconds
        kind = work.kind
        slow = self._is_slow(kind, excess)
        if slow and self._set_aside[kind] < MOST_SET_ASIDE:
            self._set_aside[kind] += 1
            return False
        if not slow:
            self._set_aside[kind] = 0
        error = min(abs(excess), 1.0)
        self._known[kind] += 1
        self._seen += 1
        self._error += max(ERROR_WEIGHT, 1 / self._seen) * (error - self._error)
        self._teach(features, seconds / self._slowness)
        self._follow_speed(features, seconds)
        return True

    def _is_slow(self, kind: int, excess: float) -> bool:
        """A step can only be slow by accident, so one that was quicker than thought is evidence.

        Counted by kind: what is rare, or comes for the first time, must not be taken for a hiccup
        for as long as steps of other kinds are predicted well.
        """
        if self._seen < WARM_UP or self._known[kind] < KNOWN:
            return False
        return excess > max(LEAST_OUTLIER, OUTLIER * self._error)

    def _teach(self, features: tuple[float, ...], seconds: float) -> None:
        memory = self._memory.predict(features) - seconds
        compute = self._compute.predict(features) - seconds
        if self._seen <= WARM_UP:
            closest = self._compute if features[3] else self._memory
        else:
            closest = self._memory if abs(memory) <= abs(compute) else self._compute
        for piece, over in ((self._memory, memory), (self._compute, compute)):
            if piece is closest or over > OVERCLAIM * seconds:
                piece.learn(features, seconds)

    def _follow_speed(self, features: tuple[float, ...], seconds: float) -> None:
        """Let the speed answer for what the pieces did not learn from a step."""
        claimed = self._claimed(features)
        if self._seen <= WARM_UP or claimed <= 0:
            return
        rest = log(seconds / claimed) - self._drift
        self._drift += SPEED_WEIGHT * max(-MOST_SPEED, min(MOST_SPEED, rest))
        believed = max(0.0, abs(self._drift) - CHANCE * self._error)
        self._slowness = exp(copysign(believed, self._drift))
