"""Order within a flow."""

NEVER = 2**63 - 1

OrderKey = tuple[int, int, int, int]


def order_key(
    ordering: str,
    *,
    preempted: bool,
    deadline: int | None,
    arrived: int,
    sequence: int,
    tokens: int = 0,
    needed: int = 0,
    pressing: bool = False,
) -> OrderKey:
    """Sort key of a waiter. Preempted work keeps its place before fresh peers.

    `edf` and `edf_drop` order by deadline, `slack` by the latest moment at which work that takes
    `needed` ns could still start, `sjf` by `tokens` (prompt and output cap), `fcfs` and `prefix` by
    arrival alone (`prefix` then looks for cached prefixes among the first few). Ties go by arrival.
    `pressing` work goes before all else. Times are monotonic nanoseconds. The key ends in the
    sequence id, so the order is total.
    """
    rank = 0
    if ordering in ("edf", "edf_drop", "slack"):
        rank = NEVER if deadline is None else deadline
        if ordering == "slack" and deadline is not None:
            rank = deadline - needed
    elif ordering == "sjf":
        rank = tokens
    standing = -1 if pressing else 0 if preempted else 1
    return (standing, rank, arrived, sequence)
