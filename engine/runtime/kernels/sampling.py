"""Draws the next token of every row on the device, without sorting a vocabulary.

The noise is that of `engine.runtime.draws`: a pure function of (seed, tokens drawn so far, token),
so no batch, grid or device changes a draw but by the rounding of logits. Filters work by rejection
(as FlashInfer's sampling, Ye et al. 2025, here with the Gumbel-max rule): the best of all noisy
scores is drawn if it passes the filters; otherwise everything not more likely than it fails too,
and the best of the rest is tried. What is drawn is exactly the best noisy score that passes.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.runtime.kernels.launch import Launch, contiguous_last

CHUNK = 8192  # tokens of one program of the first pass; a constant, so that no batch changes a sum
STEP = 2048  # tokens read at a time


@dataclass(frozen=True, slots=True)
class SampleInputs:
    """Sampling parameters by row, on the device; the fields of `engine.core.plan.Sampling`.

    `temperature`, `top_p`, `min_p` float32, `top_k` int32, `seed` int64 (the bits of the uint64),
    `draws` int32: how many tokens the sequence has drawn so far.
    """

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor
    seed: Tensor
    draws: Tensor


@triton.jit
def _mix64(x):
    """SplitMix64 (Steele et al. 2014)."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _gumbel(key, token):
    """`draws.gumbel` for the mixed `key` (uint64) of a draw and `token` ids (int32)."""
    first = (key & 0xFFFFFFFF).to(tl.uint32)
    second = (key >> 32).to(tl.uint32)
    bits = token.to(tl.uint32) ^ first
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
    bits = bits + second
    bits = (bits ^ (bits >> 15)) * 0xC2B2AE35
    bits = bits ^ (bits >> 16)
    v = ((bits & 0x7FFFFFFF).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2**-31
    v = tl.minimum(v, 0.99999994)
    # log1p(-v) to full relative precision (Kahan): what rounding 1 - v loses cancels in the ratio
    rest = 1.0 - v
    inexact = tl.where(rest == 1.0, 2.0, rest)
    log1p = tl.where(rest == 1.0, -v, tl.log(inexact) * v / (1.0 - inexact))
    return -tl.log(-log1p)


@triton.jit
def _better(score, token, other_score, other_token):
    """The larger score, the smaller token among equals."""
    wins = (other_score > score) | ((other_score == score) & (other_token < token))
    return tl.where(wins, other_score, score), tl.where(wins, other_token, token)


@triton.jit
def _heated(logits, place, inside, best, temperature):
    x = tl.load(logits + place, mask=inside, other=float("-inf")).to(tl.float32)
    return tl.div_rn(x - best, temperature)


@triton.jit
def _any_nan(x):
    return tl.sum((x != x).to(tl.int32), 0) > 0  # noqa: PLR0124 — what NaN is


@triton.jit
def top_kernel(
    logits, tops, top_tokens, stride, VOCAB: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    place = logits + row * stride + token
    x = tl.load(place, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
    top = tl.max(x, 0)
    at = tl.min(tl.where(x == top, token, VOCAB), 0)
    # a maximum may pass over NaN
    top = tl.where(_any_nan(x), float("nan"), top)
    tl.store(tops + row * CHUNKS + chunk, top)
    tl.store(top_tokens + row * CHUNKS + chunk, at)


@triton.jit
def _best_of(tops, row, CHUNKS: tl.constexpr, WIDTH: tl.constexpr):
    """The row's largest logit; NaN if any is."""
    chunk = tl.arange(0, WIDTH)
    top = tl.load(tops + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=float("-inf"))
    return tl.where(_any_nan(top), float("nan"), tl.max(top, 0))


@triton.jit
def noise_kernel(
    logits, temperatures, seeds, draws, tops, sums, scores, score_tokens, stride,
    VOCAB: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    best = _best_of(tops, row, CHUNKS, WIDTH)
    if (temperature <= 0) | ~(tl.abs(best) < float("inf")):
        return
    key = _key(seeds, draws, row)
    mass = tl.zeros([STEP], tl.float32)
    score = tl.full([STEP], float("-inf"), tl.float32)
    winner = tl.full([STEP], VOCAB, tl.int32)
    for done in range(chunk * CHUNK, (chunk + 1) * CHUNK, STEP):
        token = done + tl.arange(0, STEP)
        h = _heated(logits, row * stride + token, token < VOCAB, best, temperature)
        mass += tl.exp(h)
        score, winner = _better(score, winner, h + _gumbel(key, token), token)
    top = tl.max(score, 0)
    place = row * CHUNKS + chunk
    tl.store(sums + place, tl.sum(mass, 0))
    tl.store(scores + place, top)
    tl.store(score_tokens + place, tl.min(tl.where(score == top, winner, VOCAB), 0))


@triton.jit
def _key(seeds, draws, row):
    seed = tl.load(seeds + row).to(tl.uint64, bitcast=True)
    return _mix64(_mix64(seed) + tl.load(draws + row).to(tl.uint64))


@triton.jit
def _above(logits, offset, best, temperature, key, h, VOCAB: tl.constexpr, STEP: tl.constexpr):
    """Of tokens hotter than `h`: how many, their mass, and the one with the best noisy score."""
    count = tl.zeros([STEP], tl.int32)
    mass = tl.zeros([STEP], tl.float32)
    score = tl.full([STEP], float("-inf"), tl.float32)
    winner = tl.full([STEP], VOCAB, tl.int32)
    for done in range(0, VOCAB, STEP):
        token = done + tl.arange(0, STEP)
        mine = _heated(logits, offset + token, token < VOCAB, best, temperature)
        hotter = mine > h
        count += hotter.to(tl.int32)
        mass += tl.where(hotter, tl.exp(mine), 0.0)
        noisy = tl.where(hotter, mine + _gumbel(key, token), float("-inf"))
        score, winner = _better(score, winner, noisy, token)
    top = tl.max(score, 0)
    token = tl.min(tl.where(score == top, winner, VOCAB), 0)
    return tl.sum(count, 0), tl.sum(mass, 0), token


@triton.jit
def _within(logits, offset, best, temperature, reach, VOCAB: tl.constexpr, STEP: tl.constexpr):
    """How many tokens are at most `reach` below the hottest, and their mass."""
    count = tl.zeros([STEP], tl.int32)
    mass = tl.zeros([STEP], tl.float32)
    for done in range(0, VOCAB, STEP):
        token = done + tl.arange(0, STEP)
        mine = _heated(logits, offset + token, token < VOCAB, best, temperature)
        near = (-mine <= reach) & (token < VOCAB)
        count += near.to(tl.int32)
        mass += tl.where(near, tl.exp(mine), 0.0)
    return tl.sum(count, 0), tl.sum(mass, 0)


@triton.jit
def _mass_of_hottest(
    logits, offset, best, temperature, limit, VOCAB: tl.constexpr, STEP: tl.constexpr
):
    """The mass of exactly the `limit` hottest tokens, by bisection over their distance's bits."""
    low = tl.full([], 0, tl.int32)
    high = tl.full([], 0x7F800000, tl.int32)  # infinity: every token
    while low < high:
        middle = low + (high - low) // 2
        reach = middle.to(tl.float32, bitcast=True)
        count, mass = _within(logits, offset, best, temperature, reach, VOCAB, STEP)
        low = tl.where(count < limit, middle + 1, tl.where(count == limit, middle, low))
        high = tl.where(count < limit, high, middle)
    reach = low.to(tl.float32, bitcast=True)
    count, mass = _within(logits, offset, best, temperature, reach, VOCAB, STEP)
    # of those that tie at the edge, only as many as the limit leaves room for
    return mass - (count - limit) * tl.exp(-reach)


@triton.jit
def _filtered(
    logits, offset, best, temperature, key, token, total, limit, share, floor,
    VOCAB: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The best noisy score that top_k, top_p and min_p let pass, starting from the best of all."""
    if (limit < VOCAB) & (share < 1):
        total = _mass_of_hottest(logits, offset, best, temperature, limit, VOCAB, STEP)
    h = _heated(logits, offset + token, token < VOCAB, best, temperature)
    count, mass, other = _above(logits, offset, best, temperature, key, h, VOCAB, STEP)
    # the hottest token has nothing above it and always passes
    while (count > 0) & ((count >= limit) | (mass >= share * total) | (h < floor)):
        token = other
        h = _heated(logits, offset + token, token < VOCAB, best, temperature)
        count, mass, other = _above(logits, offset, best, temperature, key, h, VOCAB, STEP)
    return token


@triton.jit
def finish_kernel(
    logits, temperatures, top_ps, top_ks, min_ps, seeds, draws, tops, top_tokens, sums, scores,
    score_tokens, tokens, bests, stride,
    VOCAB: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    best = _best_of(tops, row, CHUNKS, WIDTH)
    tl.store(bests + row, best)
    chunk = tl.arange(0, WIDTH)
    place = row * CHUNKS + chunk
    real = chunk < CHUNKS
    temperature = tl.load(temperatures + row)
    if (temperature <= 0) | ~(tl.abs(best) < float("inf")):
        top = tl.load(tops + place, mask=real, other=float("-inf"))
        at = tl.load(top_tokens + place, mask=real, other=VOCAB)
        token = tl.min(tl.where(top == best, at, VOCAB), 0)
        # a row that fails still names a token that exists
        tl.store(tokens + row, tl.minimum(token, VOCAB - 1))
        return
    score = tl.load(scores + place, mask=real, other=float("-inf"))
    at = tl.load(score_tokens + place, mask=real, other=VOCAB)
    token = tl.min(tl.where(score == tl.max(score, 0), at, VOCAB), 0)
    top_p = tl.load(top_ps + row)
    top_k = tl.load(top_ks + row)
    min_p = tl.load(min_ps + row)
    if (top_p < 1) | (top_k > 0) | (min_p > 0):
        total = tl.sum(tl.load(sums + place, mask=real, other=0.0), 0)
        limit = tl.where(top_k > 0, top_k, VOCAB)
        share = tl.where(top_p < 1, top_p, 2.0)
        floor = tl.log(tl.maximum(min_p, 1e-38))
        token = _filtered(
            logits, row * stride, best, temperature, _key(seeds, draws, row), token, total,
            limit, share, floor, VOCAB, STEP,
        )  # fmt: skip
    tl.store(tokens + row, token)


@dataclass(frozen=True, slots=True)
class SampleScratch:
    """What the passes of `sample` tell each other: by row and chunk of the vocabulary."""

    tops: Tensor
    top_tokens: Tensor
    sums: Tensor
    scores: Tensor
    score_tokens: Tensor

    @classmethod
    def allocate(cls, batch: int, vocab: int, device: torch.device) -> "SampleScratch":
        """For up to `batch` rows."""
        shape = (batch, triton.cdiv(vocab, CHUNK))
        floats = [torch.empty(shape, dtype=torch.float32, device=device) for _ in range(3)]
        ints = [torch.empty(shape, dtype=torch.int32, device=device) for _ in range(2)]
        return cls(floats[0], ints[0], floats[1], floats[2], ints[1])


def sample(
    logits: Tensor, inputs: SampleInputs, scratch: SampleScratch, tokens: Tensor, best: Tensor
) -> None:
    """Draw one token for each row of `logits` ([B, vocab], any float type) into `tokens` [B].

    At temperature 0 the most likely token, the first of equals; else temperature, top_k, top_p of
    what is left, min_p and a draw, as `sampler.draw`. `tokens` has any integer type. `best`
    (float32 [B]) becomes the row's largest logit, NaN if any is: a row where it is not finite has
    failed, and its token means nothing but exists.
    """
    for launch in sample_launches(logits, inputs, scratch, tokens, best):
        launch.run()


def sample_launches(
    logits: Tensor, inputs: SampleInputs, scratch: SampleScratch, tokens: Tensor, best: Tensor
) -> tuple[Launch, Launch, Launch]:
    contiguous_last(logits=logits)
    batch, vocab = logits.shape
    chunks = triton.cdiv(vocab, CHUNK)
    shape = {"VOCAB": vocab, "CHUNKS": chunks}
    wide = shape | {"WIDTH": triton.next_power_of_2(chunks), "STEP": STEP}
    stride = logits.stride(0)
    heat, draw = inputs.temperature, (inputs.seed, inputs.draws)
    drawn = (scratch.sums, scratch.scores, scratch.score_tokens)
    top = Launch(
        top_kernel,
        (batch, chunks),
        (logits, scratch.tops, scratch.top_tokens, stride),
        shape | {"CHUNK": CHUNK, "num_warps": 8},
    )
    noise = Launch(
        noise_kernel,
        (batch, chunks),
        (logits, heat, *draw, scratch.tops, *drawn, stride),
        wide | {"CHUNK": CHUNK, "num_warps": 8},
    )
    finish = Launch(
        finish_kernel,
        (batch,),
        (
            *(logits, heat, inputs.top_p, inputs.top_k, inputs.min_p, *draw),
            *(scratch.tops, scratch.top_tokens, *drawn, tokens, best, stride),
        ),
        wide | {"num_warps": 8},
    )
    return top, noise, finish
