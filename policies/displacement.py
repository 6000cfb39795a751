"""Whose waiter gives way when a queue is full."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """What one flow has queued, in tokens, and its weight among those that share the queue."""

    name: str
    weight: float
    tokens: int


def most_over_share(claims: Iterable[Claim], cap: int) -> Claim:
    """The flow whose queued tokens most exceed its weighted share of `cap` tokens.

    Raises ValueError when nothing is claimed. Ties go to the name that sorts last, so that the
    choice is total.
    """
    shares = list(claims)
    if not shares:
        raise ValueError("nobody has anything queued")
    weights = sum(claim.weight for claim in shares)
    return max(shares, key=lambda c: (c.tokens - cap * c.weight / weights, c.name))
