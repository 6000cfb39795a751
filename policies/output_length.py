"""How long outputs get, learned online per tenant of one model.

A discrete hazard over bins of 16 tokens (life-table estimator, Cutler and Ederer 1958): of the
sequences that got as far as a bin, the share that finished in it. Work that was cut off counts as
far as it got, so dropped and capped sequences do not make outputs look short.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

BINS = 64
BIN_TOKENS = 16  # the last bin is open-ended
LONGEST = BINS * BIN_TOKENS
PRIOR = 4.0  # sequences' worth of belief in the prior hazard
MOST_COUNTED = 2000  # sequences; counts are halved beyond, so that old habits fade
AHEAD = np.asarray([1, 2, 3, 4, 6, 8, 12, 16, 24, 32])  # bins from where an output stands
_LOWER = np.arange(BINS) * BIN_TOKENS
_MIDDLE: Vector = np.asarray(_LOWER + (BIN_TOKENS + 1) / 2, np.float64)
# The widest prior: an output is equally likely to end in any bin.
_UNIFORM: Vector = np.asarray(1.0 / (BINS - np.arange(BINS)), np.float64)


@dataclass(frozen=True)
class LengthEstimate:
    """A distribution of output tokens as its hazard per bin, an array of shape [64]."""

    hazard: Vector

    @cached_property
    def _shares(self) -> Vector:
        """Share of outputs that end in each bin."""
        survival = np.concatenate([[1.0], np.cumprod(1.0 - self.hazard[:-1])])
        shares: Vector = survival * self.hazard
        shares[-1] = survival[-1]
        return shares

    @cached_property
    def _cumulative(self) -> list[float]:
        total: list[float] = np.cumsum(self._shares).tolist()
        return total

    @cached_property
    def mean(self) -> float:
        """E[L], in tokens."""
        return float(self._shares @ _MIDDLE)

    @cached_property
    def second_moment(self) -> float:
        """E[L²]."""
        return float(self._shares @ (_MIDDLE * _MIDDLE))

    def moments(self, cap: int) -> tuple[float, float]:
        """E[min(L, cap)] and E[min(L, cap)²]."""
        if cap >= LONGEST:
            return self.mean, self.second_moment
        found = self._moments.get(cap)
        if found is None:
            capped = np.minimum(_MIDDLE, cap)
            first, second = self._shares @ capped, self._shares @ (capped * capped)
            found = self._moments[cap] = float(first), float(second)
        return found

    @cached_property
    def _moments(self) -> dict[int, tuple[float, float]]:
        """By cap, of those asked for: calls that arrive together often have the same."""
        return {}

    def quantile(self, share: float) -> int:
        """The least number of tokens (a bin's end) within which `share` of outputs end."""
        if not 0 <= share <= 1:
            raise ValueError(f"a quantile's share must be in [0, 1], not {share}")
        place = bisect_left(self._cumulative, share - 1e-12)
        return (min(place, BINS - 1) + 1) * BIN_TOKENS

    def remaining(self, generated: int) -> float:
        """Expected further tokens of an output that has `generated` and goes on."""
        place = min(generated // BIN_TOKENS, BINS - 1)
        shares = self._shares[place:]
        alive = float(shares.sum())
        if alive <= 0.0 or place == BINS - 1:
            return BIN_TOKENS / 2
        further = np.maximum(_MIDDLE[place:] - generated, 1.0)
        return float(shares @ further) / alive

    @cached_property
    def onward(self) -> Vector:
        """P(an output that has reached a bin goes on for `AHEAD` more bins), of shape [64, 10].

        No output is believed to go far beyond the last bin.
        """
        alive = np.concatenate([[1.0], np.cumprod(1.0 - self.hazard[:-1]), np.zeros(AHEAD[-1])])
        bins = np.arange(BINS)[:, None]
        reached = np.maximum(alive[bins], np.finfo(np.float64).tiny)
        result: Vector = alive[bins + AHEAD] / reached
        return result


class LengthHistory:
    """Ends seen so far: how many sequences finished in each bin, how many were cut off in it."""

    def __init__(self) -> None:
        self._finished = np.zeros(BINS)
        self._cut = np.zeros(BINS)
        self.count = 0.0

    def observe(self, tokens: int, *, finished: bool) -> None:
        """A sequence ended after `tokens` output tokens, by itself or because it was cut off."""
        place = min(max(tokens - 1, 0) // BIN_TOKENS, BINS - 1)
        counts = self._finished if finished else self._cut
        counts[place] += 1
        self.count += 1
        if self.count > MOST_COUNTED:
            self._finished /= 2
            self._cut /= 2
            self.count /= 2

    def estimate(self, prior: Vector = _UNIFORM) -> LengthEstimate:
        """The posterior, given the hazard [64] believed before anything was seen."""
        entered = np.cumsum((self._finished + self._cut)[::-1])[::-1]
        return LengthEstimate((self._finished + PRIOR * prior) / (entered + PRIOR))


class OutputLengths:
    """Estimates for each of at most `capacity` tenants, and for all together.

    What is not known of a tenant is believed from all tenants. The least recently used are
    forgotten first.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._capacity = capacity
        self._all = LengthHistory()
        self._histories: OrderedDict[str, LengthHistory] = OrderedDict()
        self._estimates: dict[str | None, LengthEstimate] = {}

    def __len__(self) -> int:
        return len(self._histories)

    @property
    def ends(self) -> float:
        """Ends seen, old ones fading."""
        return self._all.count

    def observe(self, tenant: str, tokens: int, *, finished: bool) -> None:
        """A sequence ended; `finished` if it ended by itself rather than being cut off."""
        history = self._histories.get(tenant)
        if history is None:
            if len(self._histories) >= self._capacity:
                oldest, _ = self._histories.popitem(last=False)
                self._estimates.pop(oldest, None)
            history = self._histories[tenant] = LengthHistory()
        self._histories.move_to_end(tenant)
        history.observe(tokens, finished=finished)
        self._all.observe(tokens, finished=finished)
        self._estimates.pop(tenant, None)
        self._estimates.pop(None, None)

    def of(self, tenant: str) -> LengthEstimate:
        """What is believed of `tenant`'s outputs."""
        history = self._histories.get(tenant)
        if history is None:
            return self.overall()
        found = self._estimates.get(tenant)
        if found is None:
            found = history.estimate(self.overall().hazard)
            self._estimates[tenant] = found
        return found

    @contextmanager
    def only_looking(self) -> Iterator[None]:
        """Estimates made inside are not kept: a tenant's holds what was then known of all."""
        kept = dict(self._estimates)
        yield
        self._estimates = kept

    def overall(self) -> LengthEstimate:
        """What is believed of all outputs of the model together."""
        found = self._estimates.get(None)
        if found is None:
            found = self._estimates[None] = self._all.estimate()
        return found
