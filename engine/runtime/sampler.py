"""Draws the next token of every row that samples, all rows at once, in three parts.

`prepare` takes down on the host what the draws depend on, `draw` computes them wherever the logits
are and reads nothing back, `collect` tells what came of it once the numbers are on the host.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import BoolArray, IntArray, LongArray, RowFailure, TokenLogprob
from engine.runtime.batch_state import BatchState
from engine.runtime.draws import gumbel, noise_keys
from engine.runtime.logits import keep_likely, penalise
from engine.runtime.native.library import kernels_for
from engine.runtime.upload import upload

Rows = LongArray | None  # indices of some rows, or all of them
Choose = Callable[[Tensor, Tensor, "DrawInputs"], Tensor]  # (scores, their best, inputs) -> tokens
History = Callable[[LongArray, int], Tensor]


@dataclass(frozen=True, slots=True)
class Edits:
    """What is done to single logits: `added` to (row, token), and tokens `barred` from a row."""

    added: tuple[LongArray, LongArray, np.ndarray]  # rows, tokens, values
    barred: tuple[LongArray, LongArray]
    allowed: tuple[tuple[int, BoolArray], ...]  # (row, what its constraint bars)


@dataclass(frozen=True, slots=True)
class DrawInputs:
    """What the draws of S rows depend on besides logits. A snapshot: the batch may move on.

    `reals` [6, S] are temperature, top_p, min_p and the penalties for repetition, presence and
    frequency; `whole` [4, S] top_k, tokens drawn so far, prompt length and length. Rows are None
    where all belong. `failures` are rows whose constraint raised.
    """

    slots: LongArray
    plain: bool  # all rows: the most likely token, and nothing else to tell
    reals: np.ndarray = field(default_factory=lambda: np.empty((6, 0), np.float32))
    whole: IntArray = field(default_factory=lambda: np.empty((4, 0), np.int32))
    seeds: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))
    penalised: Rows = None
    chance: Rows = None
    filtered: Rows = None  # among `chance`
    logprobs: IntArray = field(default_factory=lambda: np.empty(0, np.int32))  # [S], -1 for none
    edits: Edits | None = None
    failures: dict[int, RowFailure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tensors of S rows, where the logits were: drawn `tokens`, int64; the largest logit `best` and

    the largest score `open` after all edits, float32 (-inf: no token is allowed). Of the L rows
    that want log-probabilities: `logprobs` [L, 1 + k], their own token's and the k best, and `top`
    [L, k] the ids of those.
    """

    tokens: Tensor
    best: Tensor
    open: Tensor
    logprobs: Tensor | None = None
    top: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Draws:
    """`tokens` [S] by sampled row; those of rows in `failures` mean nothing."""

    tokens: LongArray
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    failures: dict[int, RowFailure] = field(default_factory=dict)


def prepare(slots: LongArray, state: BatchState) -> DrawInputs:
    """Take down how the next token of each of `slots` is drawn.

    A constraint that raises fails its row alone.
    """
    table = state.sampling
    if table.plain[slots].all():
        return DrawInputs(slots, plain=True)
    outputs = state.outputs(slots)
    chance = np.flatnonzero(table.temperature[slots] > 0)
    failures: dict[int, RowFailure] = {}
    counts = (table.top_k, state.prompts, state.lengths)
    top_k, prompts, lengths = (array[slots][None] for array in counts)
    return DrawInputs(
        slots=slots,
        plain=False,
        reals=table.reals(slots),
        whole=np.concatenate([top_k, outputs[None], prompts, lengths]),
        seeds=table.seed[slots],
        penalised=_some(np.flatnonzero(table.penalised[slots]), len(slots)),
        chance=_some(chance, len(slots)),
        filtered=_some(np.flatnonzero(table.filtered[slots[chance]]), len(chance)),
        logprobs=table.logprobs[slots],
        edits=Edits(
            added=table.bias(slots),
            barred=table.barred(slots, outputs),
            allowed=tuple(_constraints(slots, state, failures)),
        ),
        failures=failures,
    )


def draw(
    logits: Tensor, inputs: DrawInputs, history: History, choose: Choose | None = None
) -> Drawn:
    """Draw one token for each row of `logits` ([S, vocab], any float type).

    Order: penalties, logit_bias, min_tokens, constraint; then the most likely token at temperature
    0, else temperature, top_k, top_p, min_p and a draw that depends on (seed, number of tokens
    drawn so far) alone. Log-probabilities are those of the model: log-softmax of the raw logits.
    A row with NaN logits fails without touching the others. `history(slots, n)` are the first n
    tokens of each of `slots`, int64. `choose` draws from the scores: a kernel, or plain torch.
    """
    choose = choose or choose_in_torch
    if inputs.plain:
        best, tokens = _largest(logits)
        return Drawn(tokens, best, best)
    raw = logits.float()
    scores = raw.clone()
    _penalise(scores, inputs, history)
    if inputs.edits is not None:
        _edit(scores, inputs.edits)
    best = scores.amax(-1)
    tokens = choose(scores, best, inputs)
    return Drawn(tokens, raw.amax(-1), best, *_logprobs(raw, tokens, inputs.logprobs))


def collect(drawn: Drawn, inputs: DrawInputs) -> Draws:
    """Tell tokens, log-probabilities and failures from what `draw` left, now on the host."""
    best, open_ = drawn.best.numpy(), drawn.open.numpy()
    failures = {
        row: RowFailure(numerical=True, detail=f"largest logit is {float(best[row])}")
        for row in np.flatnonzero(~np.isfinite(best)).tolist()
    }
    for row, failure in inputs.failures.items():
        failures.setdefault(row, failure)
    for row in np.flatnonzero(np.isneginf(open_)).tolist():
        failures.setdefault(row, RowFailure(numerical=False, detail="no token is allowed"))
    logprobs = {}
    if drawn.logprobs is not None and drawn.top is not None:
        rows = np.flatnonzero(inputs.logprobs >= 0).tolist()
        for row, values, ids in zip(rows, drawn.logprobs.tolist(), drawn.top.tolist(), strict=True):
            top = tuple(zip(ids, values[1:], strict=True))[: inputs.logprobs[row]]
            logprobs[row] = TokenLogprob(values[0], top)
    return Draws(drawn.tokens.numpy().astype(np.int64), logprobs, failures)


_kernels = cache(kernels_for)


def _largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row, as float32, and its place; NaN where a row has one."""
    native = logits.device.type == "cpu" and logits.stride(1) == 1
    kernels = _kernels(logits.dtype) if native else None
    if kernels is None:
        best, tokens = logits.max(-1)
        return best.float(), tokens
    rows = logits.shape[0]
    best, tokens = torch.empty(rows), torch.empty(rows, dtype=torch.int64)
    pointers = logits.data_ptr(), best.data_ptr(), tokens.data_ptr()
    kernels.largest(*pointers, *logits.shape, logits.stride(0))
    return best, tokens


def _some(rows: LongArray, of: int) -> Rows:
    return None if len(rows) == of else rows


def _constraints(
    slots: LongArray, state: BatchState, failures: dict[int, RowFailure]
) -> Iterator[tuple[int, BoolArray]]:
    for row in np.flatnonzero(state.sampling.constrained[slots]).tolist():
        slot = int(slots[row])
        constraint = state.sampling.constraints[slot]
        if constraint is None:
            continue
        try:
            allowed = np.asarray(constraint.allowed(state.output(slot)), np.int64)
            barred = np.ones(state.vocab_size, np.bool_)
            barred[allowed] = False
        except Exception as error:  # noqa: BLE001 — a caller's code; it fails its own row
            detail = f"constraint raised {type(error).__name__}: {error}"
            failures[row] = RowFailure(numerical=False, detail=detail)
        else:
            yield row, barred


def _penalise(scores: Tensor, inputs: DrawInputs, history: History) -> None:
    mine = np.arange(len(inputs.slots)) if inputs.penalised is None else inputs.penalised
    if not len(mine):
        return
    rows = upload(mine, scores.device)
    changed = scores.index_select(0, rows)
    penalise(
        changed,
        history(inputs.slots[mine], int(inputs.whole[3, mine].max())),
        *upload(inputs.whole[2:, mine], scores.device).unsqueeze(2),
        *upload(inputs.reals[3:, mine], scores.device).unsqueeze(2),
    )
    scores.index_copy_(0, rows, changed)


def _edit(scores: Tensor, edits: Edits) -> None:
    if len(edits.added[0]):
        index, ids, values = (upload(array, scores.device) for array in edits.added)
        scores.index_put_((index, ids), values, accumulate=True)
    if len(edits.barred[0]):
        index, ids = (upload(array, scores.device) for array in edits.barred)
        scores[index, ids] = -math.inf
    for row, barred in edits.allowed:
        scores[row].masked_fill_(upload(barred, scores.device), -math.inf)


def choose_in_torch(scores: Tensor, best: Tensor, inputs: DrawInputs) -> Tensor:
    """Tokens int64 [S] from `scores` [S, vocab] and the best of each row; uses `scores` up."""
    if inputs.chance is None:
        return _by_chance(scores, best, inputs, np.arange(len(scores)))
    certain = scores.argmax(-1)
    if not len(inputs.chance):
        return certain
    rows = upload(inputs.chance, scores.device)
    hot, hottest = scores.index_select(0, rows), best.index_select(0, rows)
    return certain.index_copy_(0, rows, _by_chance(hot, hottest, inputs, inputs.chance))


def _by_chance(scores: Tensor, best: Tensor, inputs: DrawInputs, mine: LongArray) -> Tensor:
    """Draw for rows `mine`, whose temperature is above 0."""
    temperature, top_p, min_p = inputs.reals[:3, mine]
    top_k, draws = inputs.whole[:2, mine]
    heated = scores.sub_(best.unsqueeze(1)).div_(upload(temperature, scores.device).unsqueeze(1))
    if inputs.filtered is None:
        keep_likely(heated, top_k, top_p, min_p)
    elif len(inputs.filtered):
        some = upload(inputs.filtered, scores.device)
        likely = heated.index_select(0, some)
        keep_likely(likely, *(array[inputs.filtered] for array in (top_k, top_p, min_p)))
        heated.index_copy_(0, some, likely)
    keys = upload(noise_keys(inputs.seeds[mine], draws), scores.device)
    return heated.add_(gumbel(keys, scores.shape[1])).argmax(-1)


def _logprobs(raw: Tensor, tokens: Tensor, wanted: IntArray) -> tuple[Tensor | None, Tensor | None]:
    """For rows with `wanted` >= 0: the drawn token's log-probability and the `wanted` best."""
    rows = np.flatnonzero(wanted >= 0)
    if not len(rows):
        return None, None
    index = upload(rows, raw.device)
    logprobs = raw.index_select(0, index).log_softmax(-1)
    own = logprobs.gather(1, tokens.index_select(0, index).unsqueeze(1))
    best = logprobs.topk(min(int(wanted[rows].max()), raw.shape[1]))
    return torch.cat((own, best.values), 1), best.indices
