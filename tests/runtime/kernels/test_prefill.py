"""Ragged prefill attention against float64, and how rows are cut into tiles."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.runtime.kernels import prefill_tiles, ragged_prefill_attention
from engine.runtime.kernels.prefill import QUERIES, prefill_launch
from tests.runtime.kernels.paged import assert_close, attention, paged

pytestmark = pytest.mark.kernels
EDGES = st.sampled_from([0, 1, 15, 16, 31, 32, 33, 63, 64, 65])
ROWS = st.lists(
    st.tuples(
        st.one_of(EDGES, st.integers(0, 150)),  # tokens before this step
        st.one_of(st.just(1), EDGES.filter(bool), st.integers(1, 150)),  # and in it
    ),
    min_size=1,
    max_size=4,
)
SHAPES = st.sampled_from([(4, 1, 64), (1, 1, 80), (3, 1, 96), (2, 1, 128), (7, 1, 64), (4, 2, 64)])
FORMATS = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])


def check(rows, shape, dtype, *, card=90, block=16, stored=None, seed=0):
    heads, kv_heads, dim = shape
    scale = 1 / math.sqrt(dim)
    starts, counts = np.array(rows, np.int64).T
    offsets = np.cumsum(counts) - counts + 1  # flat position 0 is nobody's
    total = int(counts.sum()) + 2
    held = paged((starts + counts).tolist(), kv_heads, dim, block, dtype, stored, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    qkv = torch.randn(total, heads + 2 * kv_heads, dim, generator=draw).to(dtype)
    queries = qkv[:, :heads]
    out = torch.full((total, heads, dim), math.nan, dtype=dtype)
    tiles = torch.from_numpy(prefill_tiles(starts, counts, offsets, heads // kv_heads))
    prefill_launch(queries, held.cache, held.tables, tiles, out, scale, card).run()
    for row, (offset, count) in enumerate(zip(offsets.tolist(), counts.tolist(), strict=True)):
        flat = slice(offset, offset + count)
        expected = attention(queries[flat], held.keys[row], held.values[row], scale)
        assert_close(out[flat], expected, dtype)
    assert out[0].isnan().all()
    assert out[-1].isnan().all()


@settings(max_examples=30, deadline=None)
@given(ROWS, SHAPES, FORMATS, st.sampled_from([80, 90]), st.integers(0, 99))
def test_ragged_rows_equal_float64(rows, shape, dtype, card, seed):
    check(rows, shape, dtype, card=card, seed=seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_chunk_at_the_end_of_a_long_context(dtype):
    check([(8192 - 40, 40), (0, 1), (8000, 1)], (4, 1, 64), dtype)


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_an_8_bit_cache_is_read_exactly(stored):
    check([(30, 20), (0, 70)], (4, 2, 64), torch.float32, stored=stored)


def test_larger_blocks_than_a_pass():
    check([(100, 90), (0, 129)], (2, 1, 64), torch.float32, block=128)


@given(
    st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 600)), min_size=1, max_size=20),
    st.integers(1, 9),
)
def test_tiles_cover_every_query_once_those_with_most_keys_first(rows, group):
    starts, counts = np.array(rows, np.int64).T
    offsets = np.cumsum(counts) - counts
    tiles = prefill_tiles(starts, counts, offsets, group)
    assert tiles.dtype == np.int32
    covered = []
    for row, flat, count, position in tiles.tolist():
        assert 1 <= count <= QUERIES // group
        assert flat - offsets[row] == position - starts[row]
        covered += range(flat, flat + count)
    assert sorted(covered) == list(range(int(counts.sum())))
    keys = (tiles[:, 2] + tiles[:, 3]).tolist()
    assert keys == sorted(keys, reverse=True)


def test_a_step_without_long_rows_has_no_tiles():
    none = np.empty(0, np.int64)
    tiles = torch.from_numpy(prefill_tiles(none, none, none, 4))
    assert tiles.shape == (0, 4)
    queries = torch.zeros(3, 4, 64)
    cache, tables = torch.zeros(1, 2, 16, 64), torch.zeros(0, 1, dtype=torch.int32)
    out = torch.ones(3, 4, 64)
    ragged_prefill_attention(queries, cache, tables, tiles, out, 1.0)
    assert (out == 1).all()
