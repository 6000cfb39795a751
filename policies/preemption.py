"""Whose work is taken back when memory runs out."""

from collections.abc import Iterable
from dataclasses import dataclass

from policies.ordering import OrderKey


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running sequence as seen by victim selection. `served` are its flow's virtual counters,

    the outermost level first.
    """

    sequence: int
    served: tuple[float, ...]
    order: OrderKey
    blocks_freed: int  # blocks that would really come free; shared ones do not


def choose_victim(candidates: Iterable[Candidate]) -> Candidate | None:
    """The last in line of the most served flow among those whose blocks would come free.

    The order is total and does not change by being preempted, so two sequences of equal standing
    never take turns in preempting each other.
    """
    useful = [c for c in candidates if c.blocks_freed > 0]
    return max(useful, key=lambda c: (c.served, c.order[1:]), default=None)
