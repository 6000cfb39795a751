"""How the contexts of a decode step are cut into items of about equal length, on the device.

The number of items is bounded by what was allocated, so the grid over them is fixed and a CUDA
graph can hold it whatever the contexts are (the split of FlashDecoding, Dao et al. 2023, with the
balance over ragged lengths of FlashInfer, Ye et al. 2025).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.runtime.kernels.launch import Launch, multiprocessors

TILE = 64  # keys of one pass through the loop of attention
SMALLEST_CHUNK = 64  # keys of an item: fewer would cost more in combining than they save
# items for each multiprocessor: two to four run at once, and the rest even out what differs
ITEMS_PER_CORE = 8


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How a step's contexts are cut, and where partial results go. Shared by the layers.

    Sequence b has items [first[b], first[b + 1]) of `items` (int32), which name their sequence;
    they share its keys evenly, in whole tiles. `partial` [capacity, heads, head_dim] and `weight`
    [capacity, heads] (float32) hold each item's result and the log2 of its softmax sum.
    """

    first: Tensor
    items: Tensor
    partial: Tensor
    weight: Tensor
    target: int

    @classmethod
    def allocate(
        cls,
        batch: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        device: torch.device,
        per_core: int = ITEMS_PER_CORE,
    ) -> "DecodePlan":
        """For up to `batch` sequences; the memory does not depend on their contexts."""
        target = -(-per_core * multiprocessors(device) // kv_heads)
        capacity = target + batch
        return cls(
            first=torch.empty(batch + 1, dtype=torch.int32, device=device),
            items=torch.empty(capacity, dtype=torch.int32, device=device),
            partial=torch.empty(capacity, heads, head_dim, dtype=torch.float32, device=device),
            weight=torch.empty(capacity, heads, dtype=torch.float32, device=device),
            target=target,
        )


@triton.jit(do_not_specialize=["batch", "target"])
def plan_kernel(
    contexts, first, items, batch, target,
    BATCH: tl.constexpr, TILE: tl.constexpr, SMALLEST: tl.constexpr,
):  # fmt: skip
    me = tl.program_id(0)
    sequences = tl.arange(0, BATCH)
    context = tl.load(contexts + sequences, mask=sequences < batch, other=0)
    share = tl.cdiv(tl.sum(context), target)
    length = tl.maximum(tl.cdiv(share, TILE) * TILE, SMALLEST)
    count = tl.cdiv(context, length)
    begin = tl.sum(tl.where(sequences < me, count, 0))
    mine = tl.sum(tl.where(sequences == me, count, 0))
    tl.store(first + me, begin)
    if me == 0:
        tl.store(first + batch, tl.sum(count))
    for done in range(0, mine, 32):
        index = done + tl.arange(0, 32)
        tl.store(items + begin + index, me, mask=index < mine)


def plan_decode(context_lens: Tensor, plan: DecodePlan) -> None:
    """Cut contexts `context_lens` (int32 [B]; 0 for padding) into items, once for all layers.

    ValueError for more sequences than `plan` was allocated for.
    """
    plan_launch(context_lens, plan).run()


def plan_launch(context_lens: Tensor, plan: DecodePlan) -> Launch:
    batch = len(context_lens)
    if batch >= len(plan.first):
        raise ValueError(f"{batch} sequences exceed the plan's {len(plan.first) - 1}")
    return Launch(
        plan_kernel,
        (batch,),
        (context_lens, plan.first, plan.items, batch, plan.target),
        {
            "BATCH": max(32, triton.next_power_of_2(len(plan.first) - 1)),
            "TILE": TILE,
            "SMALLEST": SMALLEST_CHUNK,
            "num_warps": 4,
        },
    )
