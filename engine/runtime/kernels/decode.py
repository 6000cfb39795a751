"""Attention of sequences that compute one position each, over the paged cache, split by keys.

A program takes one item of the `DecodePlan` with all the query heads of one KV head, which form one
tile for the matrix units. Sequences of several items are combined by a second kernel.
"""

import triton
import triton.language as tl
from torch import Tensor

from engine.runtime.kernels.attend import visit
from engine.runtime.kernels.decode_plan import TILE, DecodePlan
from engine.runtime.kernels.launch import LOG2_E, Launch, card_of, check_cache, contiguous_last

COMBINE = 32  # items whose results are read together


@triton.jit(do_not_specialize=["table_stride", "batch"])
def decode_kernel(
    queries, cache, tables, contexts, rows, first, items, out, partial, weight, scale,
    query_stride, out_stride, table_stride, batch,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
    GROUP: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    kv_head = tl.program_id(1)
    if item >= tl.load(first + batch):
        return
    sequence = tl.load(items + item)
    begin = tl.load(first + sequence)
    count = tl.load(first + sequence + 1) - begin
    context = tl.load(contexts + sequence)
    length = tl.cdiv(tl.cdiv(context, count), TILE) * TILE
    start = (item - begin) * length
    end = tl.minimum(start + length, context)
    row = tl.load(rows + sequence).to(tl.int64)

    head = tl.arange(0, GROUP)
    dim = tl.arange(0, DIM)
    inside = (head[:, None] < HEADS // KV_HEADS) & (dim[None, :] < HEAD_DIM)
    cells = (kv_head * (HEADS // KV_HEADS) + head[:, None]) * HEAD_DIM + dim[None, :]
    q = tl.load(queries + row * query_stride + cells, mask=inside, other=0.0)
    table = tables + sequence.to(tl.int64) * table_stride

    top = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    mixed = tl.zeros([GROUP, DIM], tl.float32)
    place = tl.full([GROUP], 0, tl.int32) + end - 1
    top, total, mixed = visit(
        q, top, total, mixed, cache, table, scale, place, start, end, kv_head,
        KV_HEADS, HEAD_DIM, BLOCK, DIM, TILE, True,
    )  # fmt: skip
    mixed = mixed / total[:, None]
    if count == 1:
        tl.store(out + row * out_stride + cells, mixed.to(out.dtype.element_ty), mask=inside)
    else:
        apart = item.to(tl.int64) * HEADS
        tl.store(partial + apart * HEAD_DIM + cells, mixed, mask=inside)
        weights = weight + apart + kv_head * (HEADS // KV_HEADS) + head
        tl.store(weights, top + tl.log2(total), mask=head < HEADS // KV_HEADS)


@triton.jit
def combine_kernel(
    partial, weight, rows, first, out, out_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    begin = tl.load(first + sequence)
    count = tl.load(first + sequence + 1) - begin
    if count == 1:
        return
    dim = tl.arange(0, DIM)
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    mixed = tl.zeros([DIM], tl.float32)
    for done in range(0, count, ITEMS):
        index = done + tl.arange(0, ITEMS)
        mine = index < count
        apart = (begin + index).to(tl.int64) * HEADS + head
        share = tl.load(weight + apart, mask=mine, other=float("-inf"))
        higher = tl.maximum(top, tl.max(share, 0))
        shrink = tl.exp2(top - higher)
        share = tl.exp2(share - higher)
        known = mine[:, None] & (dim[None, :] < HEAD_DIM)
        part = tl.load(partial + apart[:, None] * HEAD_DIM + dim[None, :], mask=known, other=0.0)
        total = total * shrink + tl.sum(share, 0)
        mixed = mixed * shrink + tl.sum(part * share[:, None], 0)
        top = higher
    # a padding row has no items: its output is zero
    mixed = mixed / tl.where(count > 0, total, 1.0)
    row = tl.load(rows + sequence).to(tl.int64)
    place = out + row * out_stride + head * HEAD_DIM + dim
    tl.store(place, mixed.to(out.dtype.element_ty), mask=dim < HEAD_DIM)


def paged_decode_attention(
    q: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    rows: Tensor,
    plan: DecodePlan,
    out: Tensor,
    scale: float,
) -> None:
    """Attend from the last position of each of B sequences; both launches have a fixed grid.

    `q` and `out` are [T, heads, head_dim]; sequence b's query and result are row `rows[b]` (int32
    [B]). `cache` is one layer of `KVCache.blocks`, in q's format or an 8-bit float. `block_tables`
    is int32 [B, max_blocks], read for the first `context_lens[b]` (int32 [B]) positions only; the
    last of them is the query's own, already written. A context of 0 is padding: its row of `out` is
    zeroed. `plan` is what `plan_decode` made of the same `context_lens`.
    """
    check_cache(cache, card_of(q.device))
    for launch in decode_launches(q, cache, block_tables, context_lens, rows, plan, out, scale):
        launch.run()


def decode_launches(
    q: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    rows: Tensor,
    plan: DecodePlan,
    out: Tensor,
    scale: float,
) -> tuple[Launch, Launch]:
    contiguous_last(q=q, out=out, block_tables=block_tables)
    heads, head_dim = q.shape[1:]
    kv_heads, block = cache.shape[1] // 2, cache.shape[2]
    batch = len(context_lens)
    dim = triton.next_power_of_2(head_dim)
    shape = {"HEADS": heads, "HEAD_DIM": head_dim, "DIM": dim}
    attend = Launch(
        decode_kernel,
        (plan.target + batch, kv_heads),
        (
            *(q, cache, block_tables, context_lens, rows, plan.first, plan.items),
            *(out, plan.partial, plan.weight, scale * LOG2_E),
            *(q.stride(0), out.stride(0), block_tables.stride(0), batch),
        ),
        shape
        | {
            "KV_HEADS": kv_heads,
            "BLOCK": block,
            "GROUP": max(16, triton.next_power_of_2(heads // kv_heads)),
            "TILE": TILE,
            "num_warps": 4,
            "num_stages": 3,
        },
    )
    combine = Launch(
        combine_kernel,
        (batch, heads),
        (plan.partial, plan.weight, rows, plan.first, out, out.stride(0)),
        shape | {"ITEMS": COMBINE, "num_warps": 4},
    )
    return attend, combine
