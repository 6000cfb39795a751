"""Which fairness policy an engine runs, and its parameters."""

from dataclasses import dataclass
from math import inf, isfinite

NAMES = (
    "fair",
    "fcfs",
    "lcf",
    "rpm",
    "vtc",
    "vtc_predict",
    "vtc_oracle",
    "dlpm",
    "priority",
)


@dataclass(frozen=True, slots=True)
class FairnessConfig:
    """`max_lag` (cost units over weight) belongs to `fair`: by how much the service of two flows
    may differ over any stretch of time in which both are backlogged, a step's charges apart.
    Whoever is ahead by half of it gives running work up; inf never takes any.
    `requests_per_minute` belongs to `rpm`, `quantum` (cost units over weight) to `dlpm`, `ageing`
    (seconds of waiting worth one priority level; inf is strict priority) to `priority`.
    """

    name: str = "fair"
    max_lag: float = 1024.0
    requests_per_minute: int = 60
    quantum: float = 4096.0
    ageing: float = inf

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"fairness must be one of {', '.join(NAMES)}, not {self.name!r}")
        for name in ("max_lag", "quantum", "ageing"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, not {getattr(self, name)}")
        if not isfinite(self.quantum):
            raise ValueError("quantum must be finite")
        if self.requests_per_minute < 1:
            raise ValueError("requests_per_minute must be at least 1")
