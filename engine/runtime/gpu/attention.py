"""What the executor asks of attention, and how the CPU's answers it for the fake device."""

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from torch import Tensor

from engine.core.plan import IntArray
from engine.runtime.gpu.inputs import TILE_WIDTH, DeviceRows
from engine.runtime.kv_cache import KVCache
from engine.runtime.model_config import ModelConfig
from engine.runtime.native.attention import make_attention
from engine.runtime.ragged import RaggedBatch

StepT = TypeVar("StepT")


class DeviceAttention(Protocol, Generic[StepT]):
    """Attention that takes what it needs from the device, so that a graph can hold it."""

    @property
    def wants_clean_blocks(self) -> bool:
        """Whether unwritten positions of a block must be zero."""
        ...

    def tiles(self, starts: IntArray, counts: IntArray, offsets: IntArray) -> IntArray:
        """How rows of several positions, at flat `offsets`, are cut; see `inputs.Tiles`."""
        ...

    def prepare(self, rows: DeviceRows, tables: Tensor) -> StepT:
        """Build what all layers share; `tables` (int32 [R, max_blocks]) are the rows' blocks."""
        ...

    def attend(self, layer: int, qkv: Tensor, step: StepT) -> Tensor:
        """As `AttentionBackend.attend`; results of padding mean nothing."""
        ...


@dataclass(frozen=True, slots=True)
class HostStep:
    inner: Any
    positions: int  # without padding


class HostAttention:
    """The CPU's own attention, behind the fake device."""

    wants_clean_blocks = True

    def __init__(self, config: ModelConfig, cache: KVCache) -> None:
        self._inner = make_attention(config, cache)
        self._width = config.query_size

    def tiles(self, *_rows: IntArray) -> IntArray:
        """It cuts long rows itself."""
        return np.empty((0, TILE_WIDTH), np.int32)

    def prepare(self, rows: DeviceRows, tables: Tensor) -> HostStep:
        counts = rows.counts.numpy().astype(np.int64)
        real = counts > 0
        counts = counts[real]
        size = int(counts.sum())
        batch = RaggedBatch(
            starts=rows.starts.numpy()[real].astype(np.int64),
            counts=counts,
            offsets=np.cumsum(counts) - counts,
            tables=tables.numpy()[real],
            tokens=np.empty(0, np.int64),  # attention reads none
            positions=rows.positions.numpy()[:size].astype(np.int64),
            row_of=np.repeat(np.arange(len(counts)), counts),
        )
        return HostStep(self._inner.prepare(batch), size)

    def attend(self, layer: int, qkv: Tensor, step: HostStep) -> Tensor:
        attended = qkv.new_zeros(len(qkv), self._width)
        if step.positions:
            real = slice(step.positions)
            attended[real] = self._inner.attend(layer, qkv[real], step.inner)
        return attended
