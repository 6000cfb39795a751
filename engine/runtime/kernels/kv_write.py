"""Rotation of queries and keys, and the new keys and values put into the paged cache."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.runtime.kernels.launch import Launch, card_of, check_cache, contiguous_last

HEADS_AT_ONCE = 8  # heads of one program


@triton.jit
def _cell(block, offset, plane, PLANES: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr):
    return ((block * PLANES + plane) * BLOCK + offset) * DIM


@triton.jit
def _narrow(x, LIMIT: tl.constexpr):
    """Saturate at the largest number of an 8-bit cache (0: no limit); NaN stays NaN."""
    if LIMIT > 0:
        x = tl.where(x > LIMIT, LIMIT, tl.where(x < -LIMIT, -LIMIT, x))
    return x


@triton.jit
def write_kernel(
    keys, values, cache, slots, key_stride, value_stride,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
    DIM: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    plane = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dim = tl.arange(0, DIM)
    is_key = plane < KV_HEADS
    inside = (plane[:, None] < 2 * KV_HEADS) & (dim[None, :] < HEAD_DIM)
    k_place = token * key_stride + plane[:, None] * HEAD_DIM + dim[None, :]
    v_place = token * value_stride + (plane - KV_HEADS)[:, None] * HEAD_DIM + dim[None, :]
    k = tl.load(keys + k_place, mask=inside & is_key[:, None], other=0.0)
    v = tl.load(values + v_place, mask=inside & ~is_key[:, None], other=0.0)
    x = _narrow(tl.where(is_key[:, None], k, v).to(tl.float32), LIMIT)
    cell = _cell(slot // BLOCK, slot % BLOCK, plane, 2 * KV_HEADS, BLOCK, HEAD_DIM)
    tl.store(cache + cell[:, None] + dim[None, :], x.to(cache.dtype.element_ty), mask=inside)


@triton.jit
def rope_kernel(
    qkv, cos, sin, positions, cache, slots, stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr, HALF: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    angle = tl.load(positions + token) * HEAD_DIM
    head = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    pair = tl.arange(0, HALF)
    half: tl.constexpr = HEAD_DIM // 2
    real = pair < half
    inside = (head[:, None] < HEADS + 2 * KV_HEADS) & real[None, :]
    place = qkv + token * stride + head[:, None] * HEAD_DIM + pair[None, :]
    x = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(place + half, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + angle + pair, mask=real, other=0.0)[None, :]
    s = tl.load(sin + angle + half + pair, mask=real, other=0.0)[None, :]
    turns = (head < HEADS + KV_HEADS)[:, None]
    first = tl.where(turns, x * c - y * s, x)
    second = tl.where(turns, y * c + x * s, y)

    is_query = (head < HEADS)[:, None] & inside
    tl.store(place, first.to(qkv.dtype.element_ty), mask=is_query)
    tl.store(place + half, second.to(qkv.dtype.element_ty), mask=is_query)
    if slot < 0:
        return
    kept = (head >= HEADS)[:, None] & inside
    cell = _cell(slot // BLOCK, slot % BLOCK, head - HEADS, 2 * KV_HEADS, BLOCK, HEAD_DIM)
    target = cache + cell[:, None] + pair[None, :]
    # rounded to the model's format first, so that an 8-bit cache holds what the unfused path would
    first = _narrow(first.to(qkv.dtype.element_ty).to(tl.float32), LIMIT)
    second = _narrow(second.to(qkv.dtype.element_ty).to(tl.float32), LIMIT)
    tl.store(target, first.to(cache.dtype.element_ty), mask=kept)
    tl.store(target + half, second.to(cache.dtype.element_ty), mask=kept)


def write_kv(k: Tensor, v: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    """Put `k` and `v` [T, kv_heads, head_dim] into one layer of `KVCache.blocks`.

    `slot_mapping` (int64 [T]) is block * block_size + offset of each; -1 writes nowhere. An 8-bit
    cache takes the values unscaled, saturated at its largest number.
    """
    check_cache(cache, card_of(cache.device))
    write_launch(k, v, cache, slot_mapping).run()


def write_launch(k: Tensor, v: Tensor, cache: Tensor, slot_mapping: Tensor) -> Launch:
    contiguous_last(k=k, v=v)
    tokens, kv_heads, head_dim = k.shape
    return Launch(
        write_kernel,
        (tokens, triton.cdiv(2 * kv_heads, HEADS_AT_ONCE)),
        (k, v, cache, slot_mapping, k.stride(0), v.stride(0)),
        {
            "KV_HEADS": kv_heads,
            "HEAD_DIM": head_dim,
            "BLOCK": cache.shape[2],
            "HEADS": HEADS_AT_ONCE,
            "DIM": triton.next_power_of_2(head_dim),
            "LIMIT": _limit(cache),
            "num_warps": 2,
        },
    )


def rope_write_kv(
    qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, cache: Tensor, slot_mapping: Tensor
) -> None:
    """Rotate queries in place; rotate keys and put them and the values into the cache.

    `qkv` is [T, heads + 2 * kv_heads, head_dim]; its keys and values stay as they were. `cos` and
    `sin` are `RotaryTable`'s (float32 [positions, 1, head_dim]), `positions` int64 [T]; `cache` and
    `slot_mapping` as for `write_kv`. Computed in float32, as `rope.rotate_` does.
    """
    check_cache(cache, card_of(cache.device))
    rope_launch(qkv, cos, sin, positions, cache, slot_mapping).run()


def rope_launch(
    qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, cache: Tensor, slot_mapping: Tensor
) -> Launch:
    contiguous_last(qkv=qkv)
    tokens, width, head_dim = qkv.shape
    kv_heads = cache.shape[1] // 2
    return Launch(
        rope_kernel,
        (tokens, triton.cdiv(width, HEADS_AT_ONCE)),
        (qkv, cos, sin, positions, cache, slot_mapping, qkv.stride(0)),
        {
            "HEADS": width - 2 * kv_heads,
            "KV_HEADS": kv_heads,
            "HEAD_DIM": head_dim,
            "BLOCK": cache.shape[2],
            "AT_ONCE": HEADS_AT_ONCE,
            "HALF": triton.next_power_of_2(head_dim // 2),
            "LIMIT": _limit(cache),
            "num_warps": 2,
        },
    )


def _limit(cache: Tensor) -> float:
    return torch.finfo(cache.dtype).max if cache.dtype.itemsize == 1 else 0.0
