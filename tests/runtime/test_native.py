"""The C++ between the matrix products against the torch operators it stands for."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.runtime import sampler
from engine.runtime.attention import GatherAttention
from engine.runtime.kv_cache import KVCache
from engine.runtime.native import library
from engine.runtime.native.attention import NativeAttention, make_attention
from engine.runtime.native.library import build, load
from engine.runtime.operators import NativeOperators, TorchOperators, make_operators
from engine.runtime.ragged import ragged
from engine.runtime.rope import RotaryTable
from engine.runtime.store import default_root
from tests.runtime.driver import TINY

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
CLOSE = {torch.float32: (2e-6, 1e-6), torch.bfloat16: (8e-3, 1e-6)}  # one step of the last bit

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, library.COMPILERS)), reason="there is no C++ compiler here"
)


def both(dtype):
    native = make_operators(TINY, dtype, CPU)
    assert isinstance(native, NativeOperators)
    return native, TorchOperators(TINY, dtype)


def assert_close(actual, expected, dtype):
    assert actual.dtype == expected.dtype
    relative, absolute = CLOSE[dtype]
    torch.testing.assert_close(actual, expected, rtol=relative, atol=absolute, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=30, deadline=None)
@given(rows=st.integers(0, 70), size=st.integers(1, 700), scale=st.sampled_from([1e-3, 1.0, 300.0]))
def test_norm_activation_and_sum_equal_torchs(dtype, rows, size, scale):
    native, plain = both(dtype)
    generator = torch.Generator().manual_seed(rows * 1000 + size)
    stream = torch.randn(rows, size, generator=generator) * scale
    weight = torch.randn(size, generator=generator)
    assert_close(native.norm(stream, weight), plain.norm(stream, weight), dtype)
    gate_up = (torch.randn(rows, 2 * size, generator=generator) * scale).to(dtype)
    exact = torch.nn.functional.silu(gate_up[:, :size].double()) * gate_up[:, size:].double()
    assert_close(native.silu_mul(gate_up), exact.to(dtype), dtype)
    sums = stream.clone(), stream.clone()
    delta = gate_up[:, :size].contiguous()
    native.add_(sums[0], delta)
    plain.add_(sums[1], delta)
    assert torch.equal(*sums)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [32, 64, 80, 128])
def test_rotation_equals_torchs_and_leaves_values_alone(dtype, dim):
    config = replace(TINY, head_dim=dim)
    table = RotaryTable(config, 512, CPU)
    width = config.num_heads + 2 * config.num_kv_heads
    heads = torch.randn(50, width, dim).to(dtype)
    expected, actual = heads.clone(), heads.clone()
    positions = torch.randint(0, 512, (50,))
    make_operators(config, dtype, CPU).rotation(table, positions)(actual)
    TorchOperators(config, dtype).rotation(table, positions)(expected)
    assert_close(actual, expected, dtype)
    assert torch.equal(actual[:, -config.num_kv_heads :], heads[:, -config.num_kv_heads :])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [32, 64, 80, 128])
def test_decoding_reads_the_blocks_in_place(dtype, dim):
    """Long and short contexts, poison in every block and position that is nobody's."""
    config = replace(TINY, head_dim=dim, num_heads=6, num_kv_heads=2)
    rng = np.random.default_rng(dim)
    contexts = np.array([1, 15, 16, 17, 400, 33], np.int64)
    tables = rng.permutation(6 * 26).astype(np.int32).reshape(6, 26)
    caches = []
    for _ in range(2):
        cache = KVCache(config, 6 * 26, 16, dtype, CPU)
        cache.blocks.fill_(math.nan)
        caches.append(cache)
    generator = torch.Generator().manual_seed(dim)
    for row, context in enumerate(contexts.tolist()):
        for position in range(context - 1):
            cell = torch.randn(config.num_layers, 4, dim, generator=generator).to(dtype)
            for cache in caches:
                cache.blocks[:, tables[row, position // 16], :, position % 16] = cell
    for row, context in enumerate(contexts.tolist()):  # plain torch reads whole blocks
        last = caches[1].blocks[:, tables[row, (context - 1) // 16]]
        last[last.isnan()] = 0
    qkv = torch.randn(6, 10, dim, generator=generator).to(dtype)
    slots, ones = np.arange(6), np.ones(6, np.int32)
    tokens = np.zeros((6, 26 * 16), np.int32)
    batch = ragged(slots, (contexts - 1).astype(np.int32), ones, tokens, tables)
    native, plain = make_attention(config, caches[0]), GatherAttention(config, caches[1])
    assert isinstance(native, NativeAttention)
    actual = native.attend(1, qkv, native.prepare(batch))
    expected = plain.attend(1, qkv, plain.prepare(batch))
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_scores_far_apart_do_not_overflow():
    cache = KVCache(TINY, 2, 16, torch.float32, CPU)
    attention = make_attention(TINY, cache)
    table = np.array([[0, 1]], np.int32)
    width, one = TINY.num_heads + 2 * TINY.num_kv_heads, np.ones(1, np.int32)
    tokens = np.zeros((1, 32), np.int32)
    qkv = torch.full((1, width, TINY.head_dim), 1e4)
    cache.blocks[0, 0, : TINY.num_kv_heads] = -1e4  # 1e9 below the score of the new token
    cache.blocks[0, 0, TINY.num_kv_heads :] = 5.0
    batch = ragged(0 * one, 16 * one, one, tokens, table)
    out = attention.attend(0, qkv, attention.prepare(batch))
    assert torch.equal(out, torch.full_like(out, 1e4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_of_a_row_is_the_first_and_a_nan_is_larger_still(dtype):
    whole = torch.randn(5, 1030, generator=torch.Generator().manual_seed(1)).to(dtype)
    logits = whole[:, :1001]  # rows lie apart
    logits[0, 17] = logits[0, 900] = 9.0
    logits[1] = -math.inf
    logits[2, 1000] = math.inf
    logits[3, 500] = math.nan
    best, places = sampler._largest(logits)
    assert best.dtype == torch.float32
    expected = logits[[0, 1, 2, 4]].max(-1).values.float()
    assert torch.equal(best[[0, 1, 2, 4]], expected)
    assert best[3].isnan()
    assert places[:3].tolist() == [17, 0, 1000]
    assert places[4] == logits[4].argmax()


@pytest.mark.server
def test_it_is_built_once(tmp_path):
    first = build(tmp_path)
    written = first.stat().st_mtime_ns
    assert build(tmp_path) == first
    assert first.stat().st_mtime_ns == written
    assert list(tmp_path.iterdir()) == [first]


def test_a_library_that_is_not_whole_is_built_anew(tmp_path, monkeypatch):
    made = build(default_root() / "native")
    compiler = tmp_path / "c++"  # a quick one
    compiler.write_text(f'#!/bin/sh\nfor last; do :; done\ncp "{made}" "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    target = build(tmp_path / "new")
    target.write_bytes(b"")
    assert load(tmp_path / "new").rms_norm_f32
    assert target.read_bytes() == made.read_bytes()
