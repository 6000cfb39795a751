"""Attention alone over rows of given lengths, on the card, and the same in float64 on the CPU."""

from collections.abc import Sequence

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
CPU = torch.device("cpu")


class PreparedRows:
    """One layer's attention over rows of given lengths.

    `rows` are (positions known before, positions computed); the former ones' KV is random, in a
    cache of the format `stored`. `more` is for `TritonAttention`.
    """

    def __init__(
        self,
        target: Target,
        shape: ModelConfig,
        rows: Sequence[tuple[int, int]],
        stored: torch.dtype,
        **more: int,
    ) -> None:
        from engine.runtime.kernels.backend import TritonAttention

        self._target, self._shape = target, shape
        self._longest = max(start + count for start, count in rows)
        config = _config(shape, rows, self._longest)
        self._sizes = (shape, config.num_blocks, BLOCK)
        self._cache = KVCache(*self._sizes, target.dtype, target.device, stored=stored)
        _fill(self._cache)
        rope = RotaryTable(shape, self._longest, target.device)
        self._attention = TritonAttention(shape, self._cache, rope, len(rows), **more)
        plan, state = _planned(rows, config)
        self._laid = laid = lay_out(plan, state, BLOCK, self._attention.tiles)
        positions = len(laid.positions)
        staging = Staging(target.seam(), positions, len(rows), positions)
        into, source = staging.write(laid, 0)
        into.copy_(source)
        tables = torch.from_numpy(state.tables[laid.slots]).to(target.device)
        self._step = self._attention.prepare(staging.views(laid.shape), tables)
        size = (positions, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)
        self._qkv = torch.randn(size, dtype=target.dtype, device=target.device)
        self._given = self._qkv.clone()
        self._batch = ragged(
            plan.slots[laid.order], laid.starts, laid.counts, state.tokens, state.tables
        )

    def attend(self) -> Tensor:
        """What the kernels make of it, [T, heads * head_dim]; writes the cache."""
        return self._attention.attend(0, self._qkv, self._step)

    def exact(self) -> Tensor:
        """The same in float64 on the CPU, from the same numbers.

        Over an 8-bit cache from what it holds of the new ones, so call it after `attend` there.
        """
        host = KVCache(*self._sizes, torch.float64, CPU)
        host.blocks.copy_(self._cache.blocks.to(self._target.dtype).cpu())
        heads = self._rotated()
        if self._cache.stored != self._cache.dtype:
            heads[:, self._shape.num_heads :] = self.written()
        reference = GatherAttention(self._shape, host)
        return reference.attend(0, heads, reference.prepare(self._batch))

    def new(self) -> Tensor:
        """The rows' rotated keys and values in float64, [T, 2 * kv_heads, head_dim]."""
        return self._rotated()[:, self._shape.num_heads :]

    def written(self) -> Tensor:
        """What the cache holds of them."""
        cells = GatherAttention(self._shape, self._cache).cells(self._batch)
        at = torch.from_numpy(cells).to(self._target.device)
        kept = self._cache.widen(self._cache.cells(0).index_select(0, at))
        return kept.view(len(self._given), -1, self._shape.head_dim).cpu().double()

    def _rotated(self) -> Tensor:
        heads = self._given.cpu().double()
        table = RotaryTable(self._shape, self._longest, CPU)
        cos, sin = table.at(torch.from_numpy(self._laid.positions))
        turning = heads[:, : self._shape.num_heads + self._shape.num_kv_heads]
        rotate_(turning, cos.double(), sin.double())
        return heads


def _config(shape: ModelConfig, rows: Sequence[tuple[int, int]], longest: int) -> KernelConfig:
    return KernelConfig(
        num_blocks=len(rows) * -(-longest // BLOCK),
        block_size=BLOCK,
        max_running=len(rows),
        max_step_tokens=sum(count for _, count in rows) + len(rows) + 32,
        max_context=longest,
        vocab_size=shape.vocab_size,
    )


def _fill(cache: KVCache) -> None:
    """With random numbers."""
    for first in range(0, cache.num_blocks, 1024):  # all of them in float32 may not fit
        some = cache.blocks[0, first : first + 1024]
        some.copy_(torch.randn(some.shape, device=some.device))


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
