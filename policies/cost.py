"""Cost of service: what a token costs the flow that asked for it."""

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True, slots=True)
class LinearCost:
    """h(np, nq) = wp·np + wq·nq, in cost units (Sheng et al., OSDI 2024, section 3)."""

    prompt_weight: float = 1.0
    output_weight: float = 2.0

    def __post_init__(self) -> None:
        for name in ("prompt_weight", "output_weight"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number of at least 0, not {value}")

    def of(self, prompt_tokens: int, output_tokens: int) -> float:
        """Cost units of `prompt_tokens` computed and `output_tokens` generated."""
        return self.prompt_weight * prompt_tokens + self.output_weight * output_tokens
