"""Attention on a CPU that reads the paged cache in place where sequences decode."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from engine.core.plan import IntArray, LongArray
from engine.runtime.attention import AttentionBackend, GatherAttention, LongRow
from engine.runtime.kv_cache import KVCache
from engine.runtime.model_config import ModelConfig
from engine.runtime.native.library import Kernels, kernels_for
from engine.runtime.ragged import RaggedBatch

# What kernels.cpp has room for.
MOST_GROUP = 16  # query heads of one KV head
MOST_DIM = 256  # of a head
MOST_BLOCK = 256  # tokens


@dataclass(frozen=True, slots=True)
class NativeStep:
    """`tokens` and `contexts` [R] are flat positions and lengths of the rows that decode, `tables`
    [R, blocks] their block tables; the longest first, so that none is left for the end.
    """

    cells: LongArray
    tokens: LongArray
    contexts: LongArray
    tables: IntArray
    rows: tuple[LongRow, ...]


def fits(config: ModelConfig, cache: KVCache) -> bool:
    """Whether the kernels have room for a model of these sizes."""
    group = config.num_heads // config.num_kv_heads
    return group <= MOST_GROUP and config.head_dim <= MOST_DIM and cache.block_size <= MOST_BLOCK


class NativeAttention:
    """Decode rows in C++; longer rows as `GatherAttention` computes them."""

    def __init__(self, config: ModelConfig, cache: KVCache, kernels: Kernels) -> None:
        self._cache = cache
        self._kernels = kernels
        self._long = GatherAttention(config, cache)
        self._heads = config.num_heads
        self._sizes = (config.num_heads, config.num_kv_heads, config.head_dim, cache.block_size)
        self._scale = 1.0 / math.sqrt(config.head_dim)

    def prepare(self, batch: RaggedBatch) -> NativeStep:
        contexts = batch.starts + batch.counts
        decoding = np.flatnonzero(batch.counts == 1)
        decoding = decoding[np.argsort(-contexts[decoding], kind="stable")]
        return NativeStep(
            cells=self._long.cells(batch),
            tokens=np.ascontiguousarray(batch.offsets[decoding]),
            contexts=np.ascontiguousarray(contexts[decoding]),
            tables=np.ascontiguousarray(batch.tables[decoding]),
            rows=self._long.long_rows(batch),
        )

    def attend(self, layer: int, qkv: Tensor, step: NativeStep) -> Tensor:
        rows, width, dim = qkv.shape
        cache, kernels = self._cache.blocks[layer], self._kernels
        planes = self._cache.planes
        kernels.store_kv(
            *(qkv.data_ptr(), cache.data_ptr(), step.cells.ctypes.data),
            *(rows, width, planes, dim),
        )
        queries = qkv[:, : self._heads]
        out = queries.new_empty(queries.shape)
        if len(step.tokens):
            kernels.decode(
                *(qkv.data_ptr(), cache.data_ptr(), step.tokens.ctypes.data),
                *(step.contexts.ctypes.data, step.tables.ctypes.data, out.data_ptr()),
                *step.tables.shape,
                *self._sizes,
                self._scale,
            )
        for row in step.rows:
            self._long.attend_row(self._cache.rows(layer), queries, row, out)
        return out.view(rows, -1)


def make_attention(config: ModelConfig, cache: KVCache) -> AttentionBackend[Any]:
    """The quickest there is for the cache's device and number format."""
    kernels = None
    if cache.blocks.device.type == "cpu" and cache.stored == cache.dtype and fits(config, cache):
        kernels = kernels_for(cache.dtype)
    if kernels is None:
        return GatherAttention(config, cache)
    return NativeAttention(config, cache, kernels)
