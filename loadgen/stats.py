"""Medians and spread of repeated measurements."""

from collections.abc import Sequence
from statistics import median


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float], unit: str = "") -> str:
    """`median (lowest to highest)` for people."""
    return f"{median(values):.3g}{unit} ({min(values):.3g} to {max(values):.3g})"
