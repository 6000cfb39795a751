"""Sequences in a poisoned paged cache, and attention in float64 to compare with."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# What a kernel may be off from the float64 result of the same inputs, relative and absolute. Values
# are about 1. float32 differs by the order of sums, the others by rounding probabilities and the
# result to their 11 or 8 bits.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Paged:
    """Sequence b holds `keys[b]` and `values[b]` [context, kv_heads, dim], by `tables[b]`."""

    cache: Tensor
    tables: Tensor
    keys: list[Tensor]
    values: list[Tensor]


def paged(
    contexts: list[int],
    kv_heads: int,
    dim: int,
    block: int,
    dtype: torch.dtype,
    stored: torch.dtype | None = None,
    seed: int = 0,
) -> Paged:
    """Blocks of random order; all that no sequence wrote is NaN, table entries beyond are wild."""
    draw = torch.Generator().manual_seed(seed)
    needs = [-(-context // block) for context in contexts]
    free = torch.randperm(sum(needs) + 3, generator=draw).to(torch.int32)
    cache = torch.full((len(free), 2 * kv_heads, block, dim), math.nan).to(stored or dtype)
    tables = torch.full((len(contexts), max([*needs, 1]) + 1), 2**30, dtype=torch.int32)
    keys, values, used = [], [], 0
    for row, (context, need) in enumerate(zip(contexts, needs, strict=True)):
        mine = free[used : used + need]
        tables[row, :need] = mine
        used += need
        both = torch.randn(context, 2 * kv_heads, dim, generator=draw).to(dtype).to(cache.dtype)
        position = torch.arange(context)
        cells = mine[position // block].long(), slice(None), position % block
        cache.view(torch.uint8 if cache.itemsize == 1 else cache.dtype)[cells] = both.view(
            torch.uint8 if cache.itemsize == 1 else cache.dtype
        )
        keys.append(both[:, :kv_heads].to(dtype))
        values.append(both[:, kv_heads:].to(dtype))
    return Paged(cache, tables, keys, values)


def attention(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Causal attention in float64 of the last len(queries) positions; [n, heads, dim]."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = (x.double().repeat_interleave(group, 1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries.double(), keys) * scale
    n, length = scores.shape[1:]
    future = torch.arange(length)[None] > torch.arange(length - n, length)[:, None]
    weights = scores.masked_fill(future, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    limit = TOLERANCE[dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=limit, atol=limit)
