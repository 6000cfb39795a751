"""Measured values beside the limits they are to keep."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

ROW_HEADER = ("measured", "value", "limit", "value/limit", "kept")


@dataclass(frozen=True, slots=True)
class Finding:
    """`value` is to be `most` or `least` the `limit`, both in `unit`. `note` says how it varied."""

    name: str
    value: float
    limit: float
    unit: str
    bound: Literal["most", "least"] = "most"
    note: str = ""

    @property
    def kept(self) -> bool:
        """Whether the limit is kept."""
        return self.value <= self.limit if self.bound == "most" else self.value >= self.limit

    def row(self) -> tuple[str, ...]:
        """For a table under ROW_HEADER."""
        sign = "<=" if self.bound == "most" else ">="
        return (
            self.name,
            f"{short(self.value)} {self.unit}{f' ({self.note})' if self.note else ''}",
            f"{sign} {short(self.limit)} {self.unit}",
            f"{self.value / self.limit:.2f}",
            "yes" if self.kept else "NO",
        )

    def figures(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "bound": self.bound,
            "limit": self.limit,
            "ratio": self.value / self.limit,
            "kept": self.kept,
            "note": self.note,
        }


def to_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """All findings, JSON-ready."""
    return [finding.figures() for finding in findings]


def short(value: float) -> str:
    """Three digits that count, or all whole ones."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def between(values: Sequence[float]) -> str:
    """The lowest and the highest value, as a note."""
    return f"{short(min(values))} to {short(max(values))}"
