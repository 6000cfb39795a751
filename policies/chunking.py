"""How many prompt tokens a step may compute, and a sequence in it."""

from collections.abc import Callable

# By how much prompts that must advance may lengthen a step whose decodes take their target alone: a
# minimum of tokens would make it several times as long on a slow machine.
MOST_STRETCH = 2.0
LEAST_SHARE = 4  # the part of that minimum with which they advance all the same


def prefill_budget(
    predict: Callable[[int], float], target: float, budget: int, min_chunk: int
) -> int:
    """Most prompt tokens, up to `budget`, with which a step keeps within `target` seconds.

    `predict` gives the step's seconds with so many prompt tokens beside its decodes; it must not
    fall as they rise. Where the decodes leave hardly any room, prompts advance all the same: by
    `min_chunk` tokens, or by as many as MOST_STRETCH allows if that is less, but at least by a
    LEAST_SHARE-th of it. Bisection: about ten predictions.
    """
    if predict(budget) <= target:
        return budget
    min_chunk = min(min_chunk, budget)
    limit = max(target, min(predict(min_chunk), MOST_STRETCH * predict(0)))
    low, high = -(-min_chunk // LEAST_SHARE), budget + 1  # `high` is taken to be too many
    while high - low > 1:
        middle = (low + high) // 2
        if predict(middle) <= limit:
            low = middle
        else:
            high = middle
    return low


def chunk_tokens(remaining: int, budget: int, min_chunk: int, others_wait: bool) -> int:
    """Tokens granted to a prefill that still needs `remaining`, of a step's `budget` left.

    A prompt that can finish in this step does. One that cannot leaves half of the budget to those
    behind it, so that several long prompts all advance and a short one is not stuck behind them;
    alone, it takes everything. A chunk is never cut below `min_chunk` for the sake of others.
    """
    if remaining <= budget:
        return remaining
    if not others_wait:
        return budget
    return min(budget, max(min_chunk, budget // 2))
