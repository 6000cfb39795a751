"""Bounded lag: when a backlogged flow has fallen too far behind, somebody else gives way."""

from collections.abc import Mapping

from policies.fairness.tree import Flow


def too_far_ahead(poor: Flow, allowed_lead: float) -> list[Flow]:
    """Who has been served more than backlogged `poor` by over `allowed_lead`.

    They are siblings, with live work, of `poor` or of what it belongs to. Empty while the lag is
    within bounds everywhere.
    """
    ahead = []
    for node in poor.upward():
        bound = node.counter + allowed_lead
        if node.above.highest > bound:
            ahead += [s for s in node.above.children.values() if s.counter > bound and s.live]
    return ahead


def lags(poor: Flow, allowed_lead: float) -> bool:
    """Whether anybody has been served more than backlogged `poor` by over `allowed_lead`."""
    return any(
        sibling.counter > node.counter + allowed_lead and sibling.live
        for node in poor.upward()
        for sibling in node.above.children.values()
    )


def standing(flow: Flow) -> tuple[tuple[float, str], ...]:
    """Sort key: how much `flow` has been served, its outermost level first."""
    line = [(node.counter, node.path[-1]) for node in flow.upward()]
    return tuple(reversed(line))


def counters_of(flow: Flow) -> tuple[float, ...]:
    """Sort key: the counters of `flow` and of what it belongs to, the outermost first.

    Counters of flows below different parents cannot be compared with each other: neither weight
    nor splitting of the parents is in them.
    """
    return tuple([node.counter for node in flow.upward()][::-1])


def lag_of(poor: Flow, rich: Flow, was: Mapping[Flow, float] | None = None) -> float:
    """How much less `poor`'s side was served than that of `rich`, at the level where they part.

    0 where one belongs to the other. `was` are counters of `poor`'s side to go by instead of those
    of now.
    """
    sides = _sides(rich, poor)
    if sides is None:
        return 0.0
    ahead, behind = sides
    return ahead.counter - (behind.counter if was is None else was[behind])


def weight_beside(poor: Flow, rich: Flow) -> float:
    """The weight of `poor`'s side at the level where it parts from `rich`."""
    sides = _sides(rich, poor)
    return poor.weight if sides is None else sides[1].weight


def outpaces(rich: Flow, poor: Flow, more: int) -> bool:
    """Whether the side of `rich` runs more work for its weight than that of `poor` would with

    `more` further sequences, at the level at which the two part.
    """
    sides = _sides(rich, poor)
    if sides is None:
        return False
    ahead, behind = sides
    return ahead.running / ahead.weight > (behind.running + more) / behind.weight


def _sides(one: Flow, other: Flow) -> tuple[Flow, Flow] | None:
    if one.parent is other.parent:
        return None if one is other else (one, other)
    downward = zip(reversed(list(one.upward())), reversed(list(other.upward())), strict=False)
    return next(((a, b) for a, b in downward if a is not b), None)


def leaves(nodes: list[Flow]) -> frozenset[Flow]:
    """`nodes` and all flows below them that have live work."""
    if not any(node.children for node in nodes):
        return frozenset(nodes)
    found: set[Flow] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        found.add(node)
        left += [child for child in node.children.values() if child.live]
    return frozenset(found)
