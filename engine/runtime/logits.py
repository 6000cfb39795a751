"""What turns raw logits into the scores that are drawn from. All functions change them in place.

Scores are float32 [R, vocab]; per-row parameters are numpy arrays of length R.
"""

import math

import numpy as np
import torch
from torch import Tensor

# candidates of top_p and top_k looked at first; ranking a whole vocabulary costs 25 times as much
SHORT_LIST = 256


def penalise(
    scores: Tensor,
    tokens: Tensor,
    prompts: Tensor,
    lengths: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Apply the penalties; all of them are [R, 1], `tokens` [R, n] with `lengths` [R, 1] valid.

    Repetition (Keskar et al. 2019, as in transformers) covers prompt and output; presence and
    frequency (as in OpenAI's API) cover the output, which begins at `prompts` [R, 1].
    """
    rows, vocab = scores.shape
    places = torch.arange(tokens.shape[1], device=scores.device)
    known = places < lengths
    # tokens that do not count fall into one column too many
    elsewhere = torch.full_like(tokens, vocab)
    seen = torch.zeros(rows, vocab + 1, dtype=torch.bool, device=scores.device)
    seen.scatter_(1, torch.where(known, tokens, elsewhere), True)
    output = known & (places >= prompts)
    counts = torch.zeros(rows, vocab + 1, device=scores.device)
    counts.scatter_add_(1, torch.where(output, tokens, elsewhere), output.float())
    counts = counts[:, :vocab]
    damped = torch.where(scores > 0, scores / repetition, scores * repetition)
    scores.copy_(torch.where(seen[:, :vocab], damped, scores))
    scores.sub_(frequency * counts).sub_(presence * (counts > 0))


def keep_likely(scores: Tensor, top_k: np.ndarray, top_p: np.ndarray, min_p: np.ndarray) -> None:
    """Set to -inf what top_k, then top_p of what is left, and min_p exclude; ties are kept.

    `scores` have the temperature applied. As in transformers: top_p keeps the most likely tokens
    until their probability reaches it; min_p is relative to the most likely token. The most likely
    token always stays.
    """
    best = scores.amax(-1, keepdim=True)
    floor = best + _column(np.log(np.maximum(min_p, 1e-38)), best)
    ranked = np.flatnonzero((top_k > 0) | (top_p < 1))
    if len(ranked):
        rows = torch.from_numpy(ranked).to(scores.device)
        limits = np.where(top_k > 0, top_k, scores.shape[1])[ranked]
        # 2 is never reached by rounding, so top_p = 1 excludes nothing
        shares = np.where(top_p < 1, top_p, 2.0)[ranked]
        ranking = scores.index_select(0, rows)
        cut = _cutoff(ranking, torch.from_numpy(limits), torch.from_numpy(shares), SHORT_LIST)
        floor[rows] = torch.maximum(floor[rows], cut)
    scores.masked_fill_(scores < floor, -math.inf)


def _cutoff(scores: Tensor, limits: Tensor, shares: Tensor, width: int) -> Tensor:
    """The lowest score [R, 1] that each row keeps, looking at its `width` best tokens first.

    Rows whose probability is spread over more than these are ranked 16 times further.
    """
    vocab = scores.shape[1]
    width = min(width, vocab)
    limit = limits.to(scores.device).unsqueeze(1)
    share = shares.to(scores.device, torch.float64).unsqueeze(1)
    values = scores.topk(width).values
    allowed = torch.arange(width, device=scores.device) < limit
    ranked = values.double().masked_fill_(~allowed, -math.inf)
    total = torch.where(
        limit <= width, ranked.logsumexp(-1, keepdim=True), scores.logsumexp(-1, keepdim=True)
    )
    shares_of = (ranked - total).exp_()
    before = shares_of.cumsum(-1) - shares_of
    kept = ((before < share) & allowed).sum(-1, keepdim=True).clamp_(min=1)
    cut = values.gather(1, kept - 1)
    spread = torch.nonzero(((kept == width) & (limit > width)).squeeze(1)).squeeze(1)
    if len(spread) and width < vocab:
        rows = spread.cpu()
        more = scores.index_select(0, spread)
        cut[spread] = _cutoff(more, limits[rows], shares[rows], width * 16)
    return cut


def _column(values: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like).unsqueeze(1)
