"""Who pays for computing again what a preemption took away.

Whoever needed the room pays: an advance at once, so that the next decision already counts it, and
the real cost as the work is done, against which the advance is settled. What turns out not to be
computed again (found in the cache, moved back, or its sequence ended) is given back.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from policies.cost import Cost
from policies.fairness.tree import Flow, FlowTree
from telemetry.lineage import Lineage

if TYPE_CHECKING:
    from engine.core.sequence import Sequence


@dataclass(slots=True)
class Debt:
    """Positions below `end`, down to the debt before, are computed again at `payer`'s expense,

    because of work of `lineage`.
    """

    end: int
    payer: Flow
    lineage: Lineage
    advance: float = 0.0  # charged to `payer` and not yet settled


class Move(NamedTuple):
    """So many blocks of KV leave the device at the expense of `payer`, for work of `lineage`."""

    payer: Flow
    lineage: Lineage
    blocks: int


def incur(tree: FlowTree, cost: Cost, victim: "Sequence", lost: range, causer: "Sequence") -> None:
    """`victim` must compute `lost` again because of `causer`. Older debts below its end are over:

    those positions had been computed again.
    """
    advance = cost.prompt(lost.start, lost.stop) if lost else 0.0
    for debt in victim.debts:
        if debt.end <= lost.stop:
            _settle(tree, debt, debt.advance)
    older = [debt for debt in victim.debts if debt.end > lost.stop]
    victim.debts = [Debt(lost.stop, causer.flow, causer.lineage, advance), *older]
    tree.charge(causer.flow, advance)


def shares(sequence: "Sequence", start: int, end: int) -> Iterator[tuple[Debt | None, int, int]]:
    """Positions [start, end) of rework, cut up by whose expense they are at; None is its own.

    What lies beyond all debts is at the last one's, for it would not be computed again either.
    """
    for debt in sequence.debts:
        if start < min(end, debt.end):
            yield debt, start, min(end, debt.end)
            start = min(end, debt.end)
    if start < end:
        yield (sequence.debts[-1] if sequence.debts else None), start, end


def settle(tree: FlowTree, debt: Debt, cost: float) -> None:
    """`cost` of what `debt` is for was charged to its payer in earnest."""
    _settle(tree, debt, min(cost, debt.advance))


def forgive(tree: FlowTree, cost: Cost, sequence: "Sequence", computed: int) -> None:
    """The first `computed` positions need not be computed again after all."""
    start = 0
    for debt in sequence.debts:
        due = cost.prompt(max(start, computed), debt.end) if computed < debt.end else 0.0
        _settle(tree, debt, max(0.0, debt.advance - due))
        start = debt.end


def _settle(tree: FlowTree, debt: Debt, amount: float) -> None:
    if amount:
        debt.advance -= amount
        tree.charge(debt.payer, -amount)
