"""Bounded lag: when a backlogged flow has fallen too far behind, somebody else gives way."""

from policies.fairness.tree import Flow


def too_far_ahead(poor: Flow, max_lag: float) -> list[Flow]:
    """Who has been served more than backlogged `poor` by over `max_lag`, at any level of the tree:

    siblings of `poor`, or of what it belongs to, that have live work. Empty while the lag is within
    bounds everywhere.
    """
    ahead = []
    for node in poor.upward():
        parent = node.parent
        assert parent is not None  # upward() ends below the root
        bound = node.counter + max_lag
        ahead += [s for s in parent.children.values() if s.counter > bound and s.live]
    return ahead


def standing(flow: Flow) -> tuple[tuple[float, str], ...]:
    """Sort key: how much `flow` has been served, its outermost level first."""
    return tuple((node.counter, node.path[-1]) for node in reversed(list(flow.upward())))


def outpaces(rich: Flow, poor: Flow, more: int) -> bool:
    """Whether the side of `rich` runs more work for its weight than that of `poor` would with

    `more` further sequences, at the level at which the two part.
    """
    for a, b in zip(reversed(list(rich.upward())), reversed(list(poor.upward())), strict=False):
        if a is not b:
            return a.running / a.weight > (b.running + more) / b.weight
    return False


def leaves(nodes: list[Flow]) -> frozenset[Flow]:
    """`nodes` and all flows below them that have live work."""
    found: set[Flow] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        found.add(node)
        left += [child for child in node.children.values() if child.live]
    return frozenset(found)
