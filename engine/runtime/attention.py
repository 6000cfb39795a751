"""Causal attention of a ragged batch over the paged KV cache.

All index tensors are built once per step and shared by the layers. Decode rows (one position) are
gathered in groups of similar length; longer rows run one by one in tiles of queries, so that a
tile computes only the keys it may see.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import IntArray, LongArray
from engine.runtime.kv_cache import KVCache
from engine.runtime.model_config import ModelConfig
from engine.runtime.ragged import RaggedBatch

# queries of one tile: larger tiles waste keys above the diagonal, smaller ones start more products
TILE = 128
# a decode group may read this much, so that what is gathered stays in the processor's caches
GROUP_BYTES = 8 << 20
# blocks of padding that cost about as much as starting another group
GROUP_WASTE = 48

StepT = TypeVar("StepT")


class AttentionBackend(Protocol, Generic[StepT]):
    """How attention is computed on one kind of device."""

    def prepare(self, batch: RaggedBatch) -> StepT:
        """Build what all layers of a step share, from host arrays."""
        ...

    def attend(self, layer: int, qkv: Tensor, step: StepT) -> Tensor:
        """Store the step's keys and values, then attend.

        `qkv` is [T, heads + 2 * kv_heads, head_dim] after rotation; the result [T, heads *
        head_dim].
        """
        ...


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one position each, padded to a common number of blocks.

    `tokens` [B] are their flat positions; `gather` [2 * B * kv_heads * blocks] the cache rows of
    keys, then values; `mask` [B * kv_heads, 1, keys] is -inf beyond each row's context.
    """

    tokens: Tensor
    gather: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class LongRow:
    """A row of several positions: flat [offset, offset + count), context positions from `start`."""

    offset: int
    start: int
    count: int
    gather: Tensor  # [2 * kv_heads * blocks]


@dataclass(frozen=True, slots=True)
class GatherStep:
    write: Tensor  # [T * 2 * kv_heads] cache cells of the new keys and values
    groups: tuple[DecodeGroup, ...]
    rows: tuple[LongRow, ...]


class GatherAttention:
    """Attention in plain torch operators, for any device: gather the blocks, then two products."""

    def __init__(self, config: ModelConfig, cache: KVCache) -> None:
        self._cache = cache
        self._heads = config.num_heads
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._scale = 1.0 / math.sqrt(config.head_dim)
        self._dtype = cache.dtype
        self._device = cache.blocks.device
        self._group_blocks = max(1, GROUP_BYTES // cache.blocks[0, 0].nbytes)
        self._scratch = cache.rows(0).new_empty(0)
        future = torch.full((TILE, TILE), -math.inf, dtype=self._dtype, device=self._device)
        self._future = future.triu(1)

    def prepare(self, batch: RaggedBatch) -> GatherStep:
        contexts = batch.starts + batch.counts
        blocks = -(-contexts // self._cache.block_size)
        decoding = np.flatnonzero(batch.counts == 1)
        return GatherStep(
            write=self._tensor(self.cells(batch)),
            groups=tuple(
                self._decode_group(batch, rows, contexts[rows], int(blocks[rows].max()))
                for rows in _groups(decoding, blocks[decoding], self._group_blocks)
            ),
            rows=self.long_rows(batch),
        )

    def long_rows(self, batch: RaggedBatch) -> tuple[LongRow, ...]:
        """The rows of several positions, and where their keys and values are."""
        blocks = -(-(batch.starts + batch.counts) // self._cache.block_size)
        return tuple(
            LongRow(
                int(batch.offsets[row]),
                int(batch.starts[row]),
                int(batch.counts[row]),
                self._tensor(self._gather_rows(batch.tables[row : row + 1, : blocks[row]])),
            )
            for row in np.flatnonzero(batch.counts > 1)
        )

    def attend(self, layer: int, qkv: Tensor, step: GatherStep) -> Tensor:
        cells, rows = self._cache.cells(layer), self._cache.rows(layer)
        new = qkv[:, self._heads :].reshape(-1, self._head_dim)
        cells.index_copy_(0, step.write, self._cache.narrow(new))
        queries = qkv[:, : self._heads]
        out = queries.new_empty(queries.shape)
        for group in step.groups:
            out.index_copy_(0, group.tokens, self._decode(rows, queries, group))
        for row in step.rows:
            self.attend_row(rows, queries, row, out)
        return out.view(len(out), -1)

    def _decode(self, rows: Tensor, queries: Tensor, group: DecodeGroup) -> Tensor:
        mine = queries.index_select(0, group.tokens)
        batch = len(mine)
        keys, values = self._gathered(rows, group.gather, batch * self._kv_heads)
        grouped = mine.view(batch * self._kv_heads, -1, self._head_dim)
        scores = torch.baddbmm(group.mask, grouped, keys.transpose(1, 2), alpha=self._scale)
        return torch.bmm(scores.softmax(-1), values).view(mine.shape)

    def attend_row(self, rows: Tensor, queries: Tensor, row: LongRow, out: Tensor) -> None:
        """Attention of one long row over a layer's cache `rows`, into its places of `out`."""
        keys, values = self._gathered(rows, row.gather, self._kv_heads)
        for first in range(0, row.count, TILE):
            length = min(TILE, row.count - first)
            visible = row.start + first + length
            flat = slice(row.offset + first, row.offset + first + length)
            # the query heads that share a KV head become further queries of that head
            split = (
                queries[flat].view(length, self._kv_heads, -1, self._head_dim).permute(1, 2, 0, 3)
            )
            stacked = split.reshape(self._kv_heads, -1, self._head_dim)
            scores = torch.bmm(stacked, keys[:, :visible].transpose(1, 2)).mul_(self._scale)
            diagonal = scores.view(self._kv_heads, -1, length, visible)[..., visible - length :]
            diagonal.add_(self._future[:length, :length])
            mixed = torch.bmm(scores.softmax(-1), values[:, :visible])
            merged = mixed.view(split.shape).permute(2, 0, 1, 3)
            out[flat].view(merged.shape).copy_(merged)

    def _gathered(self, rows: Tensor, gather: Tensor, planes: int) -> tuple[Tensor, Tensor]:
        """Keys and values, each [planes, keys, head_dim], in a buffer that the next call reuses."""
        size = len(gather) * rows.shape[1]
        if len(self._scratch) < size:
            self._scratch = rows.new_empty(size)
        buffer = self._scratch[:size].view(len(gather), -1)
        torch.index_select(rows, 0, gather, out=buffer)
        keys, values = self._cache.widen(buffer).view(2, planes, -1, self._head_dim)
        return keys, values

    def _decode_group(
        self, batch: RaggedBatch, rows: LongArray, contexts: LongArray, blocks: int
    ) -> DecodeGroup:
        used = -(-contexts // self._cache.block_size)
        # padding repeats a block of the row itself: another one could hold another row's NaN
        columns = np.minimum(np.arange(blocks), used[:, None] - 1)
        table = np.take_along_axis(batch.tables[rows], columns, axis=1)
        beyond = np.arange(blocks * self._cache.block_size) >= contexts[:, None]
        mask = torch.zeros(beyond.shape, dtype=self._dtype, device=self._device)
        mask.masked_fill_(self._tensor(beyond), -math.inf)
        return DecodeGroup(
            self._tensor(batch.offsets[rows]),
            self._tensor(self._gather_rows(table)),
            mask.repeat_interleave(self._kv_heads, 0).unsqueeze(1),
        )

    def _gather_rows(self, table: IntArray) -> LongArray:
        """Cache rows of the blocks in `table` [B, n], ordered [keys | values, B, kv_heads, n]."""
        planes = np.arange(2 * self._kv_heads).reshape(2, 1, self._kv_heads, 1)
        return (table[None, :, None, :].astype(np.int64) * self._cache.planes + planes).ravel()

    def cells(self, batch: RaggedBatch) -> LongArray:
        """Cache cells of each flat position's keys and values, ordered [T, 2 * kv_heads]."""
        size = self._cache.block_size
        block = batch.tables[batch.row_of, batch.positions // size].astype(np.int64)
        rows = block[:, None] * self._cache.planes + np.arange(self._cache.planes)
        return (rows * size + (batch.positions % size)[:, None]).ravel()

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


def _groups(rows: LongArray, blocks: LongArray, limit: int) -> Iterator[LongArray]:
    """Split `rows`, needing `blocks` each, into groups worth padding to one length."""
    order = np.argsort(-blocks, kind="stable")
    first, waste = 0, 0
    for index in range(len(order)):
        longest = int(blocks[order[first]])
        waste += longest - int(blocks[order[index]])
        if waste > GROUP_WASTE or (index - first + 1) * longest > max(limit, longest):
            yield rows[order[first:index]]
            first, waste = index, 0
    if len(order):
        yield rows[order[first:]]
