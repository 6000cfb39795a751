"""How many prompt tokens a sequence may compute in one step."""


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
