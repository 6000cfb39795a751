"""What is put into the paged cache, where, and what is left alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.runtime.kernels import rope_write_kv, write_kv
from engine.runtime.kernels.launch import check_cache
from engine.runtime.rope import RotaryTable, rotate_
from tests.runtime.driver import TINY

pytestmark = pytest.mark.kernels
CPU = torch.device("cpu")
BLOCK, BLOCKS = 16, 6
SHAPES = st.sampled_from([(4, 2, 64), (3, 1, 80), (9, 3, 96), (2, 2, 128), (8, 8, 64)])
FORMATS = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])
# cells of different tokens, and places of padding among them
SLOTS = st.lists(st.integers(0, BLOCK * BLOCKS - 1), unique=True, max_size=9).flatmap(
    lambda used: st.permutations([*used, -1])
)


def table_for(dim):
    config = TINY.__class__(
        **{name: getattr(TINY, name) for name in TINY.__slots__} | {"head_dim": dim}
    )
    return RotaryTable(config, 50, CPU)


def expected_cache(cache, keys, values, slots):
    """`cache` with the tokens of `slots` written one by one."""
    changed = cache.clone()
    for token, slot in enumerate(slots):
        if slot >= 0:
            both = torch.cat((keys[token], values[token])).to(cache.dtype)
            changed[slot // BLOCK, :, slot % BLOCK] = both
    return changed


def same(actual, expected):
    """Equal bit for bit where numbers are, and NaN where there is NaN."""
    return torch.equal(actual.float().nan_to_num(9e9), expected.float().nan_to_num(9e9))


@settings(max_examples=25, deadline=None)
@given(SLOTS, SHAPES, FORMATS, st.integers(0, 99))
def test_keys_and_values_go_to_their_cells_and_nowhere_else(slots, shape, dtype, seed):
    heads, kv_heads, dim = shape
    draw = torch.Generator().manual_seed(seed)
    qkv = torch.randn(len(slots), heads + 2 * kv_heads, dim, generator=draw).to(dtype)
    _, keys, values = qkv.split([heads, kv_heads, kv_heads], 1)
    cache = torch.full((BLOCKS, 2 * kv_heads, BLOCK, dim), math.nan, dtype=dtype)
    expected = expected_cache(cache, keys, values, slots)
    write_kv(keys, values, cache, torch.tensor(slots))
    assert same(cache, expected)


@settings(max_examples=25, deadline=None)
@given(SLOTS, SHAPES, FORMATS, st.integers(0, 99))
def test_rotation_and_write_are_those_of_the_unfused_path(slots, shape, dtype, seed):
    heads, kv_heads, dim = shape
    draw = torch.Generator().manual_seed(seed)
    qkv = torch.randn(len(slots), heads + 2 * kv_heads, dim, generator=draw).to(dtype)
    positions = torch.randint(50, (len(slots),), generator=draw)
    table = table_for(dim)
    rotated = qkv.clone()
    rotate_(rotated[:, : heads + kv_heads], *table.at(positions))
    cache = torch.full((BLOCKS, 2 * kv_heads, BLOCK, dim), math.nan, dtype=dtype)
    _, keys, values = rotated.split([heads, kv_heads, kv_heads], 1)
    expected = expected_cache(cache, keys, values, slots)
    untouched = qkv[:, heads:].clone()
    rope_write_kv(qkv, table.cos, table.sin, positions, cache, torch.tensor(slots))
    # a card may fuse a product with a sum, so the last bit may differ
    limit = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(qkv[:, :heads], rotated[:, :heads], rtol=limit, atol=limit)
    torch.testing.assert_close(cache, expected, rtol=limit, atol=limit, equal_nan=True)
    assert torch.equal(qkv[:, heads:], untouched)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_an_8_bit_cache_saturates(dtype):
    # numbers that need no rounding: the interpreter rounds ties away from zero, and loses NaN
    most = torch.finfo(dtype).max
    keys = torch.tensor([0.0, 1.0, -1.25, most, 2 * most, -1e30, 6.0, 2**-9])
    keys = keys.repeat(8).reshape(1, 1, 64)
    exact = keys[0, 0].clamp(-most, most)
    cache = torch.zeros(1, 2, BLOCK, 64).to(dtype)
    write_kv(keys, -keys, cache, torch.tensor([3]))
    qkv = torch.cat((keys, keys, -keys), 1)
    table = table_for(64)
    at_zero = torch.zeros(1, dtype=torch.int64)  # turns nothing
    rope_write_kv(qkv, table.cos, table.sin, at_zero, cache, torch.tensor([5]))
    for offset in (3, 5):
        assert torch.equal(cache[0, :, offset].float(), torch.stack((exact, -exact)))
    assert not cache.float()[0, :, [0, 4, 6]].any()


def test_a_card_without_the_8_bit_format_is_told():
    cache = torch.zeros(1, 2, BLOCK, 64).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"8\.6 has no float8_e4m3fn; use float8_e5m2"):
        check_cache(cache, 86)
    check_cache(cache, 89)
    check_cache(cache.to(torch.float8_e5m2), 80)


def test_strided_heads_are_refused():
    cache = torch.zeros(1, 2, BLOCK, 64)
    keys = torch.zeros(1, 1, 128)[..., ::2]
    with pytest.raises(ValueError, match="k must be contiguous in its last dimension"):
        write_kv(keys, keys, cache, torch.tensor([0]))
