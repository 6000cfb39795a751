"""Causal attention of rows of several positions over the paged cache (FlashAttention-2, Dao 2023).

A program takes a tile of queries with all the query heads of one KV head, so that keys and values
are read once for the group. Keys that every query of the tile sees are visited without a mask.
"""

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from engine.core.plan import IntArray, LongArray
from engine.runtime.kernels.attend import visit
from engine.runtime.kernels.launch import LOG2_E, Launch, card_of, check_cache, contiguous_last

QUERIES = 128  # rows of a program's tile: queries times the heads that share a KV head
# keys of one pass through the loop, before Hopper and since: there the tile of queries lies in
# shared memory, and its registers are free for scores
KEYS = (32, 64)


def prefill_tiles(starts: LongArray, counts: LongArray, offsets: LongArray, group: int) -> IntArray:
    """Tiles of the rows that compute `counts` positions from `starts`, at flat `offsets`.

    int32 [n, 4]: row, flat position, queries and context position of each, those with the most keys
    first so that none is left for the end. `group` is heads / kv_heads.
    """
    size = max(1, QUERIES // group)
    per_row = -(-counts // size)
    row = np.repeat(np.arange(len(counts)), per_row)
    index = np.arange(len(row)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    first = index * size
    length = np.minimum(size, counts[row] - first)
    tiles = np.stack((row, offsets[row] + first, length, starts[row] + first), 1)
    order = np.argsort(-(tiles[:, 3] + length), kind="stable")
    return np.ascontiguousarray(tiles[order].astype(np.int32))


@triton.jit(do_not_specialize=["table_stride"])
def prefill_kernel(
    queries, cache, tables, tiles, out, scale, query_stride, out_stride, table_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
    DIM: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0)
    tile = tiles + tl.program_id(1) * 4
    sequence = tl.load(tile).to(tl.int64)
    flat = tl.load(tile + 1).to(tl.int64)
    count = tl.load(tile + 2)
    start = tl.load(tile + 3)
    group: tl.constexpr = HEADS // KV_HEADS
    index = tl.arange(0, QUERIES)
    query = index // group
    dim = tl.arange(0, DIM)
    inside = (query < count)[:, None] & (dim[None, :] < HEAD_DIM)
    inside = inside & (index < QUERIES // group * group)[:, None]
    head = kv_head * group + index % group
    q_place = (flat + query)[:, None] * query_stride + head[:, None] * HEAD_DIM + dim[None, :]
    q = tl.load(queries + q_place, mask=inside, other=0.0)
    # rows beyond the tile's queries see the first key, so that no softmax is empty
    place = tl.where(query < count, start + query, 0)
    table = tables + sequence * table_stride

    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, DIM], tl.float32)
    common = (start + 1) // KEYS * KEYS
    top, total, mixed = visit(
        q, top, total, mixed, cache, table, scale, place, 0, common, kv_head,
        KV_HEADS, HEAD_DIM, BLOCK, DIM, KEYS, False,
    )  # fmt: skip
    top, total, mixed = visit(
        q, top, total, mixed, cache, table, scale, place, common, start + count, kv_head,
        KV_HEADS, HEAD_DIM, BLOCK, DIM, KEYS, True,
    )  # fmt: skip
    mixed = mixed / total[:, None]
    o_place = (flat + query)[:, None] * out_stride + head[:, None] * HEAD_DIM + dim[None, :]
    tl.store(out + o_place, mixed.to(out.dtype.element_ty), mask=inside)


def ragged_prefill_attention(
    q: Tensor, cache: Tensor, block_tables: Tensor, tiles: Tensor, out: Tensor, scale: float
) -> None:
    """Causal attention of rows that compute any number of positions, over prefix and chunk alike.

    `q` and `out` are [T, heads, head_dim]. `cache` is one layer of `KVCache.blocks`, the rows' own
    keys and values already written, in q's format or an 8-bit float. `block_tables` is int32 [R,
    max_blocks]. `tiles` is `prefill_tiles` of the rows, on the device; flat positions in no tile
    keep their `out`.
    """
    card = card_of(q.device)
    check_cache(cache, card)
    prefill_launch(q, cache, block_tables, tiles, out, scale, card).run()


def prefill_launch(
    q: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    tiles: Tensor,
    out: Tensor,
    scale: float,
    card: int,
) -> Launch:
    contiguous_last(q=q, out=out, block_tables=block_tables)
    heads, head_dim = q.shape[1:]
    kv_heads, block = cache.shape[1] // 2, cache.shape[2]
    if heads // kv_heads > QUERIES:
        raise ValueError(f"{heads // kv_heads} query heads of one KV head exceed {QUERIES}")
    return Launch(
        prefill_kernel,
        (kv_heads, len(tiles)),
        (
            *(q, cache, block_tables, tiles, out, scale * LOG2_E),
            *(q.stride(0), out.stride(0), block_tables.stride(0)),
        ),
        {
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "HEAD_DIM": head_dim,
            "BLOCK": block,
            "DIM": triton.next_power_of_2(head_dim),
            "QUERIES": QUERIES,
            "KEYS": KEYS[card >= 90],
            "num_warps": 8,
            "num_stages": 3,
        },
    )
