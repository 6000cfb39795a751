"""The inner loop of attention: keys and values of one KV head, read in place through a block table.

Online softmax in base 2 (Milakov and Gimelshein 2018; FlashAttention-2, Dao 2023): scores come
scaled by log2(e), so that exp2, which is what the hardware has, suffices.
"""

import triton
import triton.language as tl

from engine.runtime.kernels.launch import dot


@triton.jit
def _block_of(table, position, end, BLOCK: tl.constexpr):
    return tl.load(table + position // BLOCK, mask=position < end, other=0)


@triton.jit
def _widen(x, q):
    """`x` in q's format. From 8 bits by way of float16, which holds either 8-bit format exactly.

    Triton 3.6 takes an instruction that Ampere lacks for the direct way to bfloat16.
    """
    if x.dtype.primitive_bitwidth == 8:
        x = x.to(tl.float16)
    return x.to(q.dtype)


@triton.jit
def visit(
    q, top, total, mixed, cache, table, scale, place, begin, end, kv_head,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr,
    KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Let queries `q` [rows, DIM] see positions [begin, end), each up to its `place` [rows].

    `top`, `total` [rows] and `mixed` [rows, DIM] are the largest score, the softmax's sum and the
    mixed values so far; returns them brought forward. Without MASKED, `end - begin` is a multiple
    of KEYS and every row sees all. What no position has written is neither read nor multiplied.
    """
    dim = tl.arange(0, DIM)
    # the table is read one pass ahead: a load that waits for another in the same pass would cost
    # the pipeline a stage, and with it the second buffer of keys and values
    block = _block_of(table, begin + tl.arange(0, KEYS), end, BLOCK)
    for key in range(begin, end, KEYS):
        position = key + tl.arange(0, KEYS)
        known = dim[None, :] < HEAD_DIM
        if MASKED:
            known = known & (position < end)[:, None]
        plane = block.to(tl.int64) * 2 * KV_HEADS + kv_head
        cell = (plane * BLOCK + position % BLOCK) * HEAD_DIM
        keys = cache + cell[:, None] + dim[None, :]
        k = tl.load(keys, mask=known, other=0.0)
        v = tl.load(keys + KV_HEADS * BLOCK * HEAD_DIM, mask=known, other=0.0)
        block = _block_of(table, position + KEYS, end, BLOCK)
        score = dot(q, tl.trans(_widen(k, q))) * scale
        if MASKED:
            score = tl.where(position[None, :] <= place[:, None], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        shrink = tl.exp2(top - higher)
        p = tl.exp2(score - higher[:, None])
        total = total * shrink + tl.sum(p, 1)
        mixed = mixed * shrink[:, None] + dot(p.to(q.dtype), _widen(v, q))
        top = higher
    return top, total, mixed
