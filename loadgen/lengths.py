"""How long prompts and outputs are: fixed, drawn from a distribution, or from a published trace."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from loadgen.data import DataFolder
from loadgen.tables import ScenarioError

LongArray = npt.NDArray[np.int64]
Field = Literal["prompt", "output"]

# Lognormal fits (mu, sigma) to the two Azure LLM inference traces of November 2023 (CC-BY-4.0).
FITTED: dict[str, dict[Field, tuple[float, float]]] = {
    "azure23_code": {"prompt": (7.00, 1.36), "output": (2.79, 0.85)},
    "azure23_conv": {"prompt": (6.63, 0.99), "output": (5.02, 0.86)},
}


@dataclass(frozen=True, slots=True)
class Distribution:
    """Token counts of one kind, clipped to [least, most].

    `exponential` has a `mean`; `lognormal` has `mu` and `sigma` of the logarithm; `fitted` is one
    of the shipped lognormals by `name`; `quantiles` interpolates the published quantiles of the
    trace `name` in `file`.
    """

    kind: Literal["exponential", "lognormal", "fitted", "quantiles"]
    mean: float = 0.0
    mu: float = 0.0
    sigma: float = 0.0
    name: str = ""
    file: str = "trace_quantiles.json"
    least: int = 1
    most: int = 8192

    def __post_init__(self) -> None:
        if self.kind == "exponential" and self.mean <= 0:
            raise ValueError(f"an exponential distribution needs a mean above 0, not {self.mean}")
        if self.kind == "lognormal" and self.sigma < 0:
            raise ValueError(f"sigma must be at least 0, not {self.sigma}")
        if self.kind == "fitted" and self.name not in FITTED:
            raise ValueError(f"no fit is called {self.name!r}; known are {', '.join(FITTED)}")
        if not 1 <= self.least <= self.most:
            raise ValueError(f"need 1 <= least <= most, not {self.least} and {self.most}")


Lengths = int | Distribution


def draw_lengths(
    lengths: Lengths, field: Field, count: int, random: np.random.Generator, data: DataFolder
) -> LongArray:
    """`count` token counts. `field` says which side of a trace's distribution is meant."""
    if isinstance(lengths, int):
        return np.full(count, lengths, np.int64)
    draw = _DRAWS[lengths.kind](lengths, field, data)
    drawn = np.rint(draw(random, count)).astype(np.int64)
    clipped: LongArray = np.clip(drawn, lengths.least, lengths.most)
    return clipped


Draw = Callable[[np.random.Generator, int], npt.NDArray[np.float64]]


def _exponential(d: Distribution, _field: Field, _data: DataFolder) -> Draw:
    return lambda random, count: random.exponential(d.mean, count)


def _lognormal(d: Distribution, _field: Field, _data: DataFolder) -> Draw:
    return lambda random, count: random.lognormal(d.mu, d.sigma, count)


def _fitted(d: Distribution, field: Field, _data: DataFolder) -> Draw:
    mu, sigma = FITTED[d.name][field]
    return lambda random, count: random.lognormal(mu, sigma, count)


def _quantiles(d: Distribution, field: Field, data: DataFolder) -> Draw:
    tables = json.loads(data.read(d.file))
    if d.name not in tables:
        raise ScenarioError(f"{d.file} has no trace {d.name!r}; known: {', '.join(tables)}")
    shares = np.asarray(tables[d.name]["quantiles"], float) / 100
    values = np.asarray(tables[d.name][field], float)
    return lambda random, count: np.interp(random.random(count), shares, values)


_DRAWS = {
    "exponential": _exponential,
    "lognormal": _lognormal,
    "fitted": _fitted,
    "quantiles": _quantiles,
}
