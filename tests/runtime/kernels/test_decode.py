"""Paged decode attention against float64, from poisoned memory and into poisoned outputs."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.runtime.kernels import DecodePlan, paged_decode_attention, plan_decode
from engine.runtime.kernels.decode_plan import SMALLEST_CHUNK, TILE
from tests.runtime.kernels.paged import assert_close, attention, paged

pytestmark = pytest.mark.kernels
CPU = torch.device("cpu")
CONTEXTS = st.lists(
    st.one_of(st.sampled_from([0, 1, 15, 16, 17, 63, 64, 65, 128]), st.integers(0, 400)),
    min_size=1,
    max_size=5,
)
SHAPES = st.sampled_from([(4, 1, 64), (2, 2, 80), (3, 1, 96), (8, 2, 128), (7, 1, 64), (20, 1, 64)])
FORMATS = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])


def plan_for(batch, heads, kv_heads, dim, target):
    """A plan whose memory is all wrong to begin with."""
    plan = DecodePlan.allocate(batch, heads, kv_heads, dim, CPU)
    capacity = target + batch
    return dataclasses.replace(
        plan,
        first=torch.full((batch + 1,), 2**30, dtype=torch.int32),
        items=torch.full((capacity,), 2**30, dtype=torch.int32),
        partial=torch.full((capacity, heads, dim), math.nan),
        weight=torch.full((capacity, heads), math.nan),
        target=target,
    )


def check(contexts, shape, dtype, *, block=16, target=4, stored=None, seed=0, spare=2):
    heads, kv_heads, dim = shape
    scale = 1 / math.sqrt(dim)
    held = paged(contexts, kv_heads, dim, block, dtype, stored, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    batch = len(contexts)
    total = batch + spare
    # queries are a part of what one product made, and rows of the batch come in any order
    qkv = torch.randn(total, heads + 2 * kv_heads, dim, generator=draw).to(dtype)
    rows = torch.randperm(total, generator=draw)[:batch]
    out = torch.full((total, heads, dim), math.nan, dtype=dtype)
    lengths = torch.tensor(contexts, dtype=torch.int32)
    plan = plan_for(batch + 3, heads, kv_heads, dim, target)
    plan_decode(lengths, plan)
    queries = qkv[:, :heads]
    paged_decode_attention(
        queries, held.cache, held.tables, lengths, rows.to(torch.int32), plan, out, scale
    )
    for row, context, keys, values in zip(
        rows.tolist(), contexts, held.keys, held.values, strict=True
    ):
        if context == 0:
            assert (out[row] == 0).all()
        else:
            expected = attention(queries[row : row + 1], keys, values, scale)
            assert_close(out[row : row + 1], expected, dtype)
    others = torch.ones(total, dtype=torch.bool)
    others[rows] = False
    assert out[others].isnan().all(), "rows of nobody must not be written"


@settings(max_examples=40, deadline=None)
@given(CONTEXTS, SHAPES, FORMATS, st.sampled_from([16, 32]), st.integers(1, 9), st.integers(0, 99))
def test_decoding_equals_float64(contexts, shape, dtype, block, target, seed):
    check(contexts, shape, dtype, block=block, target=target, seed=seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_long_context_beside_short_ones(dtype):
    check([8192, 3, 0, 8191], (4, 1, 128), dtype, target=40)


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_an_8_bit_cache_is_read_exactly(stored):
    check([1, 16, 130], (8, 2, 128), torch.float32, stored=stored)
    check([33, 70], (4, 4, 80), torch.float16, stored=stored)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=40), st.integers(1, 50))
def test_items_cover_every_context_once_and_fit(contexts, target):
    plan = plan_for(len(contexts) + 2, 1, 1, 16, target)
    lengths = torch.tensor(contexts, dtype=torch.int32)
    plan_decode(lengths, plan)
    share = math.ceil(sum(contexts) / target)
    chunk = max(SMALLEST_CHUNK, math.ceil(share / TILE) * TILE)
    counts = [-(-context // chunk) for context in contexts]
    assert plan.first.diff().tolist()[: len(contexts)] == counts
    assert int(plan.first[0]) == 0
    total = sum(counts)
    assert total <= len(plan.items)
    expected = [row for row, count in enumerate(counts) for _ in range(count)]
    assert plan.items[:total].tolist() == expected


def test_one_row_of_nan_spoils_no_other():
    held = paged([100, 100], 1, 64, 16, torch.float32)
    held.cache[held.tables[0, 0]] = math.nan
    plan = plan_for(2, 4, 1, 64, 4)
    lengths = torch.tensor([100, 100], dtype=torch.int32)
    rows = torch.arange(2, dtype=torch.int32)
    out = torch.zeros(2, 4, 64)
    plan_decode(lengths, plan)
    queries = torch.randn(2, 4, 64)
    paged_decode_attention(queries, held.cache, held.tables, lengths, rows, plan, out, 0.1)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


def test_more_sequences_than_planned_for_are_refused():
    plan = plan_for(2, 1, 1, 16, 4)
    with pytest.raises(ValueError, match="3 sequences exceed the plan's 2"):
        plan_decode(torch.ones(3, dtype=torch.int32), plan)
