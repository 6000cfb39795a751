"""Paged attention of random ragged batches against dense attention of each sequence alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.runtime.attention import GROUP_WASTE, GatherAttention, _groups
from engine.runtime.kv_cache import KVCache
from engine.runtime.native.attention import make_attention
from engine.runtime.ragged import ragged
from tests.runtime.driver import TINY

CPU = torch.device("cpu")
BACKENDS = [GatherAttention, make_attention]  # plain torch, and what is quickest here
MAX_BLOCKS = 26


def dense(queries, keys, values):
    """Causal attention of the last len(queries) positions; queries [n, heads, dim]."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = (x.double().repeat_interleave(group, 1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries.double(), keys) / math.sqrt(queries.shape[-1])
    n, length = scores.shape[1:]
    future = torch.arange(length)[None] > torch.arange(length - n, length)[:, None]
    weights = scores.masked_fill(future, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).reshape(n, -1)


ROWS = st.lists(
    st.tuples(
        st.integers(0, 200),  # tokens already in the cache
        st.one_of(st.just(1), st.integers(1, 200)),  # tokens of this step
    ),
    min_size=1,
    max_size=7,
)


@pytest.mark.parametrize("make", BACKENDS)
@settings(max_examples=60, deadline=None)
@given(rows=ROWS, seed=st.integers(0, 1000))
def test_a_ragged_batch_equals_dense_attention(make, rows, seed):
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    cache = KVCache(TINY, 8 * MAX_BLOCKS, 16, torch.float32, CPU)
    backend = make(TINY, cache)
    # whatever no row owns is poisoned; each row's own blocks are zeroed, as on entering them
    cache.blocks.fill_(math.nan)
    pool = rng.permutation(8 * MAX_BLOCKS).astype(np.int32)
    tables = rng.integers(0, 8 * MAX_BLOCKS, (len(rows), MAX_BLOCKS)).astype(np.int32)
    taken = 0
    for row, (start, count) in enumerate(rows):
        need = -(-(start + count) // 16)
        tables[row, :need] = pool[taken : taken + need]
        taken += need
        cache.clear(torch.from_numpy(tables[row, :need].astype(np.int64)))
    width = TINY.num_heads + 2 * TINY.num_kv_heads
    sequences = [
        torch.randn(start + count, width, TINY.head_dim, generator=generator)
        for start, count in rows
    ]
    slots = np.arange(len(rows))
    tokens = np.zeros((len(rows), MAX_BLOCKS * 16), np.int32)
    starts = np.array([start for start, _ in rows], np.int32)
    counts = np.array([count for _, count in rows], np.int32)
    earlier = starts > 0
    with torch.inference_mode():
        if earlier.any():
            batch = ragged(slots[earlier], 0 * starts[earlier], starts[earlier], tokens, tables)
            flat = torch.cat([sequences[r][: starts[r]] for r in np.flatnonzero(earlier)])
            backend.attend(1, flat, backend.prepare(batch))
        batch = ragged(slots, starts, counts, tokens, tables)
        flat = torch.cat([seq[start:] for seq, start in zip(sequences, starts, strict=True)])
        actual = backend.attend(1, flat, backend.prepare(batch))
    heads, kv = TINY.num_heads, TINY.num_kv_heads
    expected = torch.cat(
        [
            dense(seq[start:, :heads], seq[:, heads : heads + kv], seq[:, heads + kv :])
            for seq, start in zip(sequences, starts, strict=True)
        ]
    )
    assert torch.allclose(actual.double(), expected, rtol=1e-4, atol=1e-5)
    assert cache.blocks[0].isnan().any(), "another layer must not be written"


@pytest.mark.parametrize("make", BACKENDS)
def test_a_row_that_holds_nan_spoils_no_other(make):
    cache = KVCache(TINY, 8, 16, torch.float32, CPU)
    backend = make(TINY, cache)
    tables = np.array([[0, 1, 2], [3, 3, 3]], np.int32)
    batch = ragged(
        np.arange(2, dtype=np.int32),
        np.array([40, 3], np.int32),
        np.array([1, 1], np.int32),
        np.zeros((2, 48), np.int32),
        tables,
    )
    cache.blocks[:, :3] = math.nan
    heads = torch.randn(2, TINY.num_heads + 2 * TINY.num_kv_heads, TINY.head_dim)
    out = backend.attend(0, heads, backend.prepare(batch))
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


@given(
    blocks=st.lists(st.integers(1, 300), max_size=40),
    limit=st.integers(1, 2000),
)
def test_groups_cover_every_row_once_within_their_limits(blocks, limit):
    needs = np.array(blocks, np.int64)
    rows = np.arange(len(blocks)) * 3
    groups = list(_groups(rows, needs, limit))
    assert sorted(np.concatenate(groups).tolist() if groups else []) == rows.tolist()
    for group in groups:
        mine = needs[group // 3]
        assert len(group) == 1 or len(group) * mine.max() <= limit
        assert (mine.max() - mine).sum() <= GROUP_WASTE


def test_cleared_and_copied_blocks_touch_nothing_else():
    cache = KVCache(TINY, 6, 16, torch.float32, CPU)
    cache.blocks.copy_(torch.arange(6.0).view(1, 6, 1, 1, 1).expand_as(cache.blocks))
    cache.clear(torch.tensor([4, 2]))
    cache.copy([(5, 1), (1, 3)])
    assert cache.blocks[:, :, 0, 0, 0].tolist() == [[0, 5, 0, 5, 0, 5]] * TINY.num_layers
