"""Attention alone over rows of given lengths, on the card, and the same in float64 on the CPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.core.config import KernelConfig
from engine.core.plan import Join, StepPlan
from engine.runtime.attention import GatherAttention
from engine.runtime.batch_state import BatchState
from engine.runtime.device_check.steps import GREEDY, step_plan
from engine.runtime.device_check.target import Target
from engine.runtime.gpu.inputs import Staging, lay_out
from engine.runtime.kv_cache import KVCache
from engine.runtime.model_config import ModelConfig
from engine.runtime.ragged import ragged
from engine.runtime.rope import RotaryTable, rotate_

BLOCK = 16


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """`attend` computes one layer for all rows; `exact` the same from the same numbers."""

    attend: Callable[[], Tensor]
    exact: Callable[[], Tensor]


def one_layer(shape: ModelConfig) -> ModelConfig:
    return replace(shape, num_layers=1)


def prepared(target: Target, shape: ModelConfig, rows: Sequence[tuple[int, int]]) -> PreparedRows:
    """`rows` are (positions known before, positions computed); the former ones' KV is random."""
    from engine.runtime.kernels.backend import TritonAttention

    longest = max(start + count for start, count in rows)
    per_row = -(-longest // BLOCK)
    config = KernelConfig(
        num_blocks=len(rows) * per_row,
        block_size=BLOCK,
        max_running=len(rows),
        max_step_tokens=sum(count for _, count in rows) + len(rows) + 32,
        max_context=longest,
        vocab_size=shape.vocab_size,
    )
    sizes = (shape, config.num_blocks, BLOCK)
    cache = KVCache(*sizes, target.dtype, target.device)
    cache.blocks.normal_()
    rope = RotaryTable(shape, longest, target.device)
    attention = TritonAttention(shape, cache, rope, len(rows))
    plan, state = _planned(rows, config)
    laid = lay_out(plan, state, BLOCK, attention.tiles)
    positions = len(laid.positions)
    staging = Staging(target.seam(), positions, len(rows), positions)
    into, source = staging.write(laid, 0)
    into.copy_(source)
    tables = torch.from_numpy(state.tables[laid.slots]).to(target.device)
    step = attention.prepare(staging.views(laid.shape), tables)
    width = shape.num_heads + 2 * shape.num_kv_heads
    qkv = torch.randn(positions, width, shape.head_dim, dtype=target.dtype, device=target.device)
    given = qkv.clone(), cache.blocks.clone() if positions < 1024 else cache.blocks

    def exact() -> Tensor:
        host = KVCache(*sizes, torch.float64, torch.device("cpu"))
        host.blocks.copy_(given[1])
        heads = given[0].cpu().double()
        table = RotaryTable(shape, longest, torch.device("cpu"))
        cos, sin = table.at(torch.from_numpy(laid.positions))
        rotated = heads[:, : shape.num_heads + shape.num_kv_heads]
        rotate_(rotated, cos.double(), sin.double())
        batch = ragged(laid.slots, laid.starts, laid.counts, state.tokens, state.tables)
        reference = GatherAttention(shape, host)
        return reference.attend(0, heads, reference.prepare(batch))

    return PreparedRows(lambda: attention.attend(0, qkv, step), exact)


def _planned(rows: Sequence[tuple[int, int]], config: KernelConfig) -> tuple[StepPlan, BatchState]:
    state = BatchState(len(rows), config.max_context, BLOCK, config.vocab_size)
    order = np.random.default_rng(0).permutation(config.num_blocks).astype(np.int32)
    tables = order.reshape(len(rows), -1)
    joins = []
    for slot, (start, count) in enumerate(rows):
        tokens = np.zeros(start + count, np.int32)
        blocks = tables[slot, : -(-len(tokens) // BLOCK)]
        joins.append(Join(slot, slot, tokens, len(tokens), blocks, GREEDY))
    starts, counts = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    plan = step_plan(0, starts, counts, joined=tuple(joins))
    state.apply(plan)
    return plan, state
