"""Draws the next token of every row that samples, all rows at once."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import IntArray, LongArray, RowFailure, TokenLogprob
from engine.runtime.batch_state import BatchState
from engine.runtime.draws import gumbel
from engine.runtime.logits import keep_likely, penalise


@dataclass(frozen=True, slots=True)
class Drawn:
    """`tokens` [S] by sampled row; those of rows in `failures` mean nothing."""

    tokens: LongArray
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    failures: dict[int, RowFailure] = field(default_factory=dict)


def draw(logits: Tensor, slots: IntArray, state: BatchState) -> Drawn:
    """Draw one token for each of `slots` from its row of `logits` ([S, vocab], any float type).

    Order: penalties, logit_bias, min_tokens, constraint; then the most likely token at temperature
    0, else temperature, top_k, top_p, min_p and a draw that depends on (seed, number of tokens
    drawn so far) alone. Log-probabilities are those of the model: log-softmax of the raw logits.
    A row with NaN logits, or whose constraint raises, fails without touching the others.
    """
    table = state.sampling
    if table.plain[slots].all():
        best, choice = logits.max(-1)
        return Drawn(choice.cpu().numpy(), failures=_numerical(best))
    raw = logits.float()
    failures = _numerical(raw.amax(-1))
    scores = raw.clone()
    _adjust(scores, slots, state)
    _constrain(scores, slots, state, failures)
    best = scores.amax(-1)
    for row in torch.nonzero(best == -math.inf).squeeze(1).tolist():
        failures.setdefault(row, RowFailure(numerical=False, detail="no token is allowed"))
    tokens = _choose(scores, best, slots, state)
    return Drawn(tokens, _logprobs(raw, tokens, table.logprobs[slots]), failures)


def _numerical(best: Tensor) -> dict[int, RowFailure]:
    """Failures of rows whose largest logit is not finite; a NaN anywhere counts as the largest."""
    rows = torch.nonzero(~torch.isfinite(best)).squeeze(1).tolist()
    return {
        row: RowFailure(numerical=True, detail=f"largest logit is {float(best[row])}")
        for row in rows
    }


def _adjust(scores: Tensor, slots: IntArray, state: BatchState) -> None:
    table = state.sampling
    penalised = np.flatnonzero(table.penalised[slots])
    if len(penalised):
        rows = _to(penalised, scores)
        mine = slots[penalised]
        changed = scores.index_select(0, rows)
        longest = int(state.lengths[mine].max())
        penalise(
            changed,
            _to(state.tokens[mine, :longest].astype(np.int64), scores),
            *(_to(array[mine], scores).unsqueeze(1) for array in (state.prompts, state.lengths)),
            *(
                _to(array[mine], scores).unsqueeze(1)
                for array in (table.repetition, table.presence, table.frequency)
            ),
        )
        scores.index_copy_(0, rows, changed)
    index, ids, values = table.bias(slots)
    if len(index):
        place = (_to(index, scores), _to(ids, scores))
        scores.index_put_(place, _to(values, scores), accumulate=True)
    index, ids = table.barred(slots, state.outputs(slots))
    if len(index):
        scores[_to(index, scores), _to(ids, scores)] = -math.inf


def _constrain(
    scores: Tensor, slots: IntArray, state: BatchState, failures: dict[int, RowFailure]
) -> None:
    for row in np.flatnonzero(state.sampling.constrained[slots]).tolist():
        slot = int(slots[row])
        constraint = state.sampling.constraints[slot]
        if constraint is None:
            continue
        try:
            allowed = np.asarray(constraint.allowed(state.output(slot)), np.int64)
            barred = np.ones(scores.shape[1], np.bool_)
            barred[allowed] = False
        except Exception as error:  # noqa: BLE001 — a caller's code; it fails its own row
            detail = f"constraint raised {type(error).__name__}: {error}"
            failures.setdefault(row, RowFailure(numerical=False, detail=detail))
        else:
            scores[row].masked_fill_(_to(barred, scores), -math.inf)


def _choose(scores: Tensor, best: Tensor, slots: IntArray, state: BatchState) -> LongArray:
    table = state.sampling
    chance = np.flatnonzero(table.temperature[slots] > 0)
    if not len(chance):
        return _numpy(scores.argmax(-1))
    mine = slots[chance]
    rows = _to(chance, scores)
    heated = scores.index_select(0, rows).sub_(best.index_select(0, rows).unsqueeze(1))
    heated.div_(_to(table.temperature[mine], scores).unsqueeze(1))
    filtered = np.flatnonzero(table.filtered[mine])
    if len(filtered):
        some = _to(filtered, scores)
        likely = heated.index_select(0, some)
        parameters = (table.top_k, table.top_p, table.min_p)
        keep_likely(likely, *(array[mine[filtered]] for array in parameters))
        heated.index_copy_(0, some, likely)
    noise = gumbel(table.seed[mine], state.outputs(mine), scores.shape[1], scores.device)
    tokens = np.empty(len(slots), np.int64)
    tokens[chance] = _numpy(heated.add_(noise).argmax(-1))
    certain = np.flatnonzero(table.temperature[slots] <= 0)
    if len(certain):
        tokens[certain] = _numpy(scores.index_select(0, _to(certain, scores)).argmax(-1))
    return tokens


def _logprobs(raw: Tensor, tokens: LongArray, wanted: IntArray) -> dict[int, TokenLogprob]:
    """For rows with `wanted` >= 0: the drawn token's log-probability and the `wanted` best."""
    rows = np.flatnonzero(wanted >= 0)
    if not len(rows):
        return {}
    logprobs = raw.index_select(0, _to(rows, raw)).log_softmax(-1)
    own = logprobs.gather(1, _to(tokens[rows], raw).unsqueeze(1)).squeeze(1).tolist()
    best = logprobs.topk(min(int(wanted[rows].max()), raw.shape[1]))
    values, ids = best.values.tolist(), best.indices.tolist()
    return {
        row: TokenLogprob(own[i], tuple(zip(ids[i], values[i], strict=True))[: wanted[row]])
        for i, row in enumerate(rows.tolist())
    }


def _to(array: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device)


def _numpy(tensor: Tensor) -> LongArray:
    array: LongArray = tensor.cpu().numpy()
    return array
