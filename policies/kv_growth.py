"""How much more memory running sequences will take, from how long their outputs tend to get.

After t more tokens of each, a sequence that holds u tokens of KV holds u + t with the probability
that it still runs, and nothing otherwise. The sum's mean and deviation are followed over a few t;
its highest point is what has to fit. With lengths known for sure this is the predicted peak of the
VTC artifact (Sheng et al., OSDI 2024), looked at at those t alone.
"""

import numpy as np
import numpy.typing as npt

from policies.output_length import AHEAD, BIN_TOKENS, BINS

Ints = npt.NDArray[np.int32]
Vector = npt.NDArray[np.float64]

STEPS: Vector = np.asarray(AHEAD * BIN_TOKENS, np.float64)


def expected_growth(
    used: Ints, generated: Ints, left: Ints, onward: Vector, owner: Ints, deviations: float
) -> float:
    """Tokens of KV by which running sequences will grow before enough of them have ended.

    `used`, `generated` and `left` [n] are the tokens that each holds, has put out, and may still
    put out. `onward` [owners, 64, 10] are `LengthEstimate.onward` of their owners, `owner` [n] says
    whose each sequence is. The highest point is that of the mean plus `deviations` standard
    deviations, and never above what there would be if nothing ended.
    """
    place = np.minimum(generated // BIN_TOKENS, BINS - 1)
    held = (used[:, None] + STEPS) * (left[:, None] >= STEPS)
    mean = held * onward[owner, place]
    variance = (mean * (held - mean)).sum(axis=0)
    likely = mean.sum(axis=0) + deviations * np.sqrt(variance)
    peak = np.minimum(likely, held.sum(axis=0)).max()
    return max(0.0, float(peak) - float(used.sum()))
