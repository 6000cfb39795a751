"""Order within a flow: earliest deadline first, then arrival."""

NEVER = 2**63 - 1

OrderKey = tuple[int, int, int, int]


def order_key(*, preempted: bool, deadline: int | None, arrived: int, sequence: int) -> OrderKey:
    """Sort key of a waiter. Preempted work keeps its place before fresh peers.

    Times are monotonic nanoseconds. The key ends in the sequence id, so the order is total.
    """
    return (0 if preempted else 1, NEVER if deadline is None else deadline, arrived, sequence)
