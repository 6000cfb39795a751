"""The seams of the forward pass and of drawing, answered by the kernels.

Attention and operators belong together: keys are rotated as they are written into the cache, so
`TritonOperators.rotation` leaves them to `TritonAttention`.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import IntArray
from engine.runtime.gpu.inputs import DeviceRows
from engine.runtime.kernels import (
    DecodePlan,
    SampleInputs,
    SampleScratch,
    paged_decode_attention,
    plan_decode,
    prefill_tiles,
    ragged_prefill_attention,
    rms_norm_add,
    rope_write_kv,
    sample,
    silu_mul,
)
from engine.runtime.kernels.decode_plan import ITEMS_PER_CORE
from engine.runtime.kv_cache import KVCache
from engine.runtime.model_config import ModelConfig
from engine.runtime.operators import Rotation
from engine.runtime.rope import RotaryTable
from engine.runtime.sampler import DrawInputs
from engine.runtime.upload import upload

# rows of sampling parameters are padded to this many entries: a kernel is compiled once for
# addresses that are multiples of 16 bytes and once for others, and may not be while serving
ALIGNMENT = 16


class TritonOperators:
    """Norms fused with the residual sum, and the activation. Rotation is attention's."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self._eps = config.rms_eps
        self._dtype = dtype

    def norm(self, stream: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty(stream.shape, dtype=self._dtype, device=stream.device)
        rms_norm_add(stream, None, weight, out, self._eps)
        return out

    def add_(self, stream: Tensor, delta: Tensor) -> None:
        stream.add_(delta)

    def add_norm(self, stream: Tensor, delta: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty(stream.shape, dtype=self._dtype, device=stream.device)
        rms_norm_add(stream, delta, weight, out, self._eps)
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        silu_mul(gate_up, out)
        return out

    def rotation(self, _table: RotaryTable, _positions: Tensor) -> Rotation:
        return _left_to_attention


def _left_to_attention(_heads: Tensor) -> None:
    """`TritonAttention` rotates as it writes."""


@dataclass(frozen=True, slots=True)
class TritonStep:
    """`positions` and `cells` are int64 [T]; `contexts` int32 [decodes], of the rows that come

    first and compute one position each.
    """

    positions: Tensor
    cells: Tensor
    tables: Tensor
    contexts: Tensor
    tiles: Tensor


class TritonAttention:
    """Rotates, writes the cache and attends. For up to `most_rows` rows of one position.

    `per_core` is how many items of a decode step each multiprocessor gets.
    """

    wants_clean_blocks = False  # what no position has written is neither read nor multiplied

    def __init__(
        self,
        config: ModelConfig,
        cache: KVCache,
        rope: RotaryTable,
        most_rows: int,
        per_core: int = ITEMS_PER_CORE,
    ) -> None:
        self._cache, self._rope = cache, rope
        self._heads = config.num_heads
        self._group = config.num_heads // config.num_kv_heads
        self._scale = 1.0 / math.sqrt(config.head_dim)
        device = cache.blocks.device
        sizes = config.num_heads, config.num_kv_heads, config.head_dim
        self._plan = DecodePlan.allocate(most_rows, *sizes, device, per_core)
        self._rows = torch.arange(most_rows, dtype=torch.int32, device=device)

    def tiles(self, starts: IntArray, counts: IntArray, offsets: IntArray) -> IntArray:
        exact = [array.astype(np.int64) for array in (starts, counts, offsets)]
        return prefill_tiles(exact[0], exact[1], exact[2], self._group)

    def prepare(self, rows: DeviceRows, tables: Tensor) -> TritonStep:
        alone = slice(rows.decodes)
        contexts = rows.starts[alone] + rows.counts[alone]
        if rows.decodes:
            plan_decode(contexts, self._plan)
        positions, cells = rows.positions.long(), rows.cells.long()
        return TritonStep(positions, cells, tables, contexts, rows.tiles)

    def attend(self, layer: int, qkv: Tensor, step: TritonStep) -> Tensor:
        cache, rope = self._cache.blocks[layer], self._rope
        rope_write_kv(qkv, rope.cos, rope.sin, step.positions, cache, step.cells)
        queries = qkv[:, : self._heads]
        out = torch.empty(queries.shape, dtype=qkv.dtype, device=qkv.device)
        if decodes := len(step.contexts):
            alone = step.tables[:decodes], step.contexts, self._rows[:decodes]
            paged_decode_attention(queries, cache, *alone, self._plan, out, self._scale)
        if len(step.tiles):
            ragged_prefill_attention(queries, cache, step.tables, step.tiles, out, self._scale)
        return out.view(len(out), -1)


class TritonChoice:
    """Draws from scores; see `engine.runtime.sampler.Choose`. For up to `most_rows` rows."""

    def __init__(self, most_rows: int, vocab: int, device: torch.device) -> None:
        self._scratch = SampleScratch.allocate(most_rows, vocab, device)

    def __call__(self, scores: Tensor, _best: Tensor, inputs: DrawInputs) -> Tensor:
        return self.drawn(scores, parameters(inputs, scores.device))

    def drawn(self, scores: Tensor, parameters: SampleInputs) -> Tensor:
        """Tokens, int64 [S]; uploads nothing, so that a graph can hold it."""
        tokens = torch.empty(len(scores), dtype=torch.int64, device=scores.device)
        best = torch.empty(len(scores), device=scores.device)  # the kernel finds it anew
        sample(scores, parameters, self._scratch, tokens, best)
        return tokens


def parameters(inputs: DrawInputs, device: torch.device) -> SampleInputs:
    """What the kernels draw by, uploaded."""
    rows = len(inputs.slots)
    temperature, top_p, min_p = upload(_padded(inputs.reals[:3]), device)[:, :rows]
    top_k, draws = upload(_padded(inputs.whole[:2]), device)[:, :rows]
    seeds = upload(inputs.seeds.view(np.int64), device)
    return SampleInputs(temperature, top_p, top_k, min_p, seeds, draws)


def _padded(columns: np.ndarray) -> np.ndarray:
    return np.pad(columns, ((0, 0), (0, -columns.shape[1] % ALIGNMENT)))
