"""Bounded lag: when a backlogged flow has fallen too far behind, somebody else gives way."""

from operator import attrgetter

from policies.fairness.tree import Flow

_SERVED = attrgetter("counter", "path")


def most_served_over(poor: Flow, max_lag: float) -> Flow | None:
    """The flow to take running work from, for the sake of backlogged `poor`.

    At the outermost level at which some sibling with running work is ahead of `poor`'s side by more
    than `max_lag`, the one furthest ahead; below it, its own most served descendant that runs
    anything. None while the lag is within bounds everywhere.
    """
    for node in reversed(list(poor.upward())):
        parent = node.parent
        assert parent is not None  # upward() ends below the root
        ahead = [s for s in parent.children.values() if s.running and s is not node]
        richest = max(ahead, key=_SERVED, default=None)
        if richest is not None and richest.counter - node.counter > max_lag:
            return _deepest(richest)
    return None


def _deepest(flow: Flow) -> Flow:
    while True:
        running = [child for child in flow.children.values() if child.running]
        if not running:
            return flow
        flow = max(running, key=_SERVED)
