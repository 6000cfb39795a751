"""Cost of service: what a token costs the flow that asked for it."""

from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int32] | Floats
NAMES = ("linear", "profiled", "device_time")


@dataclass(frozen=True, slots=True)
class CostConfig:
    """Which cost function: `linear` (with its two weights), `profiled`, or `device_time`."""

    name: str = "linear"
    prompt_weight: float = 1.0
    output_weight: float = 2.0

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"cost must be one of {', '.join(NAMES)}, not {self.name!r}")
        for name in ("prompt_weight", "output_weight"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number of at least 0, not {value}")


class Cost(Protocol):
    """h(np, nq) as increments, so that partial work is charged too."""

    def prompt(self, start: int, end: int) -> float:
        """Prompt positions [start, end) computed."""
        ...

    def outputs(self, prompts: Numbers, before: Numbers, tokens: Numbers) -> Floats:
        """`tokens` more output tokens of sequences with `prompts` and `before` tokens already."""
        ...

    def observe(self, seconds: float, tokens: int) -> None:
        """A step of `tokens` positions took `seconds`."""
        ...


class Linear:
    """h(np, nq) = wp·np + wq·nq (Sheng et al., OSDI 2024, section 3)."""

    def __init__(self, prompt_weight: float, output_weight: float) -> None:
        self._prompt = prompt_weight
        self._output = output_weight

    def prompt(self, start: int, end: int) -> float:
        return self._prompt * (end - start)

    def outputs(self, prompts: Numbers, before: Numbers, tokens: Numbers) -> Floats:  # noqa: ARG002
        costs: Floats = self._output * tokens.astype(np.float64)
        return costs

    def observe(self, seconds: float, tokens: int) -> None:
        """Prices do not depend on time."""


class Profiled:
    """The quadratic profile of Llama-2-7B on an A10G, in milliseconds (same paper, appendix)."""

    BASE, PROMPT, OUTPUT, CROSS, SQUARE = 1.14601454, 0.21001891, 0.10075395, 0.0039868, 0.00324733

    def prompt(self, start: int, end: int) -> float:
        base = self.BASE if start == 0 and end > 0 else 0.0
        return base + self.PROMPT * (end - start)

    def outputs(self, prompts: Numbers, before: Numbers, tokens: Numbers) -> Floats:
        # squares of positions do not fit 32 bits
        more, start = tokens.astype(np.float64), before.astype(np.float64)
        each = (self.OUTPUT + self.CROSS * prompts) * more
        total: Floats = each + self.SQUARE * ((start + more) ** 2 - start**2)
        return total

    def observe(self, seconds: float, tokens: int) -> None:
        """Prices do not depend on time."""


class DeviceTime:
    """Milliseconds of the device: a step's measured time divided evenly among its positions.

    Work is charged when it is planned, at the price of recent steps (an exponentially weighted mean
    over about 20 of them), since its own step has not run yet.
    """

    WEIGHT = 0.05

    def __init__(self) -> None:
        self._milliseconds = 0.0
        self._positions = 0.0

    @property
    def price(self) -> float:
        """Milliseconds a position; 1 until a step was seen."""
        return self._milliseconds / self._positions if self._positions else 1.0

    def prompt(self, start: int, end: int) -> float:
        return self.price * (end - start)

    def outputs(self, prompts: Numbers, before: Numbers, tokens: Numbers) -> Floats:  # noqa: ARG002
        costs: Floats = self.price * tokens.astype(np.float64)
        return costs

    def observe(self, seconds: float, tokens: int) -> None:
        self._milliseconds += self.WEIGHT * (seconds * 1e3 - self._milliseconds)
        self._positions += self.WEIGHT * (tokens - self._positions)


def make_cost(config: CostConfig) -> Cost:
    """The cost function that `config` names."""
    match config.name:
        case "profiled":
            return Profiled()
        case "device_time":
            return DeviceTime()
    return Linear(config.prompt_weight, config.output_weight)
