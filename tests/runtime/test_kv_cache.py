"""The paged cache in an 8-bit format, and its blocks on the host."""

import math

import pytest
import torch

from engine.core.plan import Transfer
from engine.runtime import kv_cache
from engine.runtime.attention import GatherAttention
from engine.runtime.host_link import seconds_a_block
from engine.runtime.kv_cache import KVCache
from engine.runtime.ragged import ragged
from tests.runtime.driver import TINY

CPU = torch.device("cpu")
FORMS = [torch.float8_e4m3fn, torch.float8_e5m2]


def narrow_cache(form, host_blocks=0):
    return KVCache(TINY, 6, 16, torch.float32, CPU, host_blocks, form)


@pytest.mark.parametrize("form", FORMS)
def test_an_8_bit_cache_takes_a_quarter_of_fp32_and_saturates(form):
    cache = narrow_cache(form, 2)
    assert 4 * cache.nbytes == KVCache(TINY, 6, 16, torch.float32, CPU, 2).nbytes
    most = torch.finfo(form).max
    given = torch.tensor([0.0, 1.0, -1.25, most, 2 * most, -1e30, math.inf])
    kept = cache.widen(cache.narrow(given))
    assert kept.tolist() == [0.0, 1.0, -1.25, most, most, -most, most]
    assert cache.widen(cache.narrow(torch.tensor([math.nan]))).isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_blocks_keep_their_bits_wherever_they_go(form):
    cache = narrow_cache(form, 3)
    bits = cache.blocks.view(torch.uint8)
    bits.copy_(torch.randint(256, bits.shape, dtype=torch.uint8))
    first = bits[:, 1].clone()
    cache.copy(((1, 4),))
    cache.transfer((Transfer(4, 2, to_host=True),))
    cache.clear(torch.tensor([1, 4]))
    assert not bits[:, [1, 4]].any()
    cache.transfer((Transfer(5, 2, to_host=False),))
    assert torch.equal(bits[:, 5], first)


@pytest.mark.parametrize("form", FORMS)
def test_attention_reads_what_an_8_bit_cache_holds(form):
    """Equal to attention over an exact cache of numbers that were rounded before."""
    starts, counts, slots = torch.tensor([20, 0, 31]).numpy(), [1, 18, 1], [0, 1, 2]
    counts = torch.tensor(counts).numpy()
    tables = torch.arange(6, dtype=torch.int32).view(3, 2).numpy()
    batch = ragged(torch.tensor(slots).numpy(), starts, counts, tables.repeat(64, 1), tables)
    rounded, exact = narrow_cache(form), KVCache(TINY, 6, 16, torch.float32, CPU)
    noise = torch.randn(exact.blocks.shape)
    rounded.blocks.copy_(noise)
    exact.blocks.copy_(noise.to(form).float())
    qkv = torch.randn(20, TINY.num_heads + 2 * TINY.num_kv_heads, TINY.head_dim)
    given = qkv.clone()
    given[:, TINY.num_heads :] = qkv[:, TINY.num_heads :].to(form).float()
    found, expected = (
        attention.attend(0, heads, attention.prepare(batch))
        for attention, heads in (
            (GatherAttention(TINY, rounded), qkv),
            (GatherAttention(TINY, exact), given),
        )
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(rounded.blocks.float(), exact.blocks)


def test_host_blocks_come_in_pieces(monkeypatch):
    one = KVCache(TINY, 1, 16, torch.float32, CPU, 1).host[0]
    monkeypatch.setattr(kv_cache, "PIECE", 2 * one.nbytes + 1)
    host = KVCache(TINY, 1, 16, torch.float32, CPU, 5).host
    assert [block.shape for block in host] == [one.shape] * 5
    pieces = [block.untyped_storage().nbytes() // one.nbytes for block in host]
    assert pieces == [2, 2, 2, 2, 1]


def test_the_time_of_a_move_is_measured():
    assert 0 < seconds_a_block(narrow_cache(torch.float8_e5m2, 6)) < 1
