"""What a step's forward pass reads: laid out on the host as one array, copied as one piece."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import IntArray, LongArray, StepPlan
from engine.runtime.batch_state import BatchState
from engine.runtime.gpu.device import Device

ALIGNMENT = 16  # entries: kernels may read a section in pieces of 64 bytes
TILE_WIDTH = 4

# (starts, counts, offsets) of rows of several positions -> how attention cuts them: int32 [n, 4],
# of which the first column is the row among these
Tiles = Callable[[IntArray, IntArray, IntArray], IntArray]


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows that compute, those of one position first, with what `pad` adds.

    All are int32 but `order`.

    `token_at`, `positions` and `cells` have an entry for each of T flat positions: where its token
    is in the pool, its place in its context, and the cache cell (block * block_size + offset) of
    its keys and values, -1 for nowhere. `slots`, `starts` and `counts` have one for each of R rows,
    of which the first `decodes` compute one position; a row of padding has count 0. `tiles` says
    how attention cuts the others. `order` are the plan's rows in this order.
    """

    token_at: IntArray
    positions: IntArray
    cells: IntArray
    slots: IntArray
    starts: IntArray
    counts: IntArray
    tiles: IntArray
    decodes: int
    order: LongArray

    @property
    def arrays(self) -> tuple[IntArray, ...]:
        per_position = (self.token_at, self.positions, self.cells)
        return (*per_position, self.slots, self.starts, self.counts, self.tiles)

    @property
    def shape(self) -> "StepShape":
        tiles = self.tiles.size // TILE_WIDTH
        return StepShape(len(self.token_at), len(self.slots), self.decodes, tiles)

    def ends(self, rows: int) -> IntArray:
        """Flat position of each plan row's last computed position; 0 for rows without."""
        ends = np.zeros(rows, np.int32)
        real = len(self.order)
        ends[self.order] = np.cumsum(self.counts[:real]) - 1
        return ends


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sizes from which the places of all sections follow."""

    positions: int
    rows: int
    decodes: int
    tiles: int

    @property
    def lengths(self) -> tuple[int, ...]:
        return (*(self.positions,) * 3, *(self.rows,) * 3, self.tiles * TILE_WIDTH)


def lay_out(plan: StepPlan, state: BatchState, block_size: int, tiles: Tiles) -> StepRows:
    """The rows of `plan` that compute, from what the host knows of the batch."""
    computing = np.flatnonzero(plan.counts > 0)
    alone = plan.counts[computing] == 1
    order = np.concatenate([computing[alone], computing[~alone]])
    slots, starts, counts = plan.slots[order], plan.starts[order], plan.counts[order]
    offsets = np.cumsum(counts, dtype=np.int32) - counts
    row_of = np.repeat(np.arange(len(order)), counts)
    positions = np.arange(len(row_of), dtype=np.int32) + (starts - offsets)[row_of]
    blocks = state.tables[slots[row_of], positions // block_size]
    decodes = int(np.count_nonzero(alone))
    cut = tiles(starts[decodes:], counts[decodes:], offsets[decodes:])
    cut[:, 0] += decodes
    return StepRows(
        token_at=(slots[row_of] * state.max_context + positions).astype(np.int32),
        positions=positions,
        cells=blocks * np.int32(block_size) + positions % np.int32(block_size),
        slots=slots.astype(np.int32),
        starts=starts,
        counts=counts,
        tiles=cut,
        decodes=decodes,
        order=order,
    )


def pad(rows: StepRows, size: int) -> StepRows:
    """Rows of one position each, padded to `size` of them; padding writes nowhere."""
    more = size - len(rows.slots)

    def padded(array: IntArray, value: int = 0) -> IntArray:
        return np.concatenate([array, np.full(more, value, np.int32)])

    return StepRows(
        token_at=padded(rows.token_at),
        positions=padded(rows.positions),
        cells=padded(rows.cells, -1),
        slots=padded(rows.slots),
        starts=padded(rows.starts),
        counts=padded(rows.counts),
        tiles=rows.tiles,
        decodes=size,
        order=rows.order,
    )


def padding(size: int) -> StepRows:
    """Nothing but padding."""
    none = np.empty(0, np.int32)
    return pad(StepRows(none, none, none, none, none, none, none, 0, none.astype(np.int64)), size)


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """`StepRows` on the device: views of the buffer that each step overwrites. `decodes` rows of

    one position come first, and with them as many flat positions.
    """

    token_at: Tensor
    positions: Tensor
    cells: Tensor
    slots: Tensor
    starts: Tensor
    counts: Tensor
    tiles: Tensor  # [n, 4]
    decodes: int


class Staging:
    """One buffer on the device, and two in pinned memory that take turns.

    A pinned buffer is written again two steps later, when its step is known to be done. On the
    device all steps use one buffer: it is overwritten in their order. Sections of a shape always
    lie at the same places, so a graph of that shape finds its inputs.
    """

    def __init__(self, device: Device, max_positions: int, max_rows: int, max_tiles: int) -> None:
        lengths = StepShape(max_positions, max_rows, max_rows, max_tiles).lengths
        size = sum(_aligned(length) for length in lengths)
        self._pinned = tuple(device.pinned(size, torch.int32) for _ in range(2))
        self._buffer = torch.zeros(size, dtype=torch.int32, device=device.place)

    def write(self, rows: StepRows, turn: int) -> tuple[Tensor, Tensor]:
        """Put `rows` into a pinned buffer; returns where to copy to, and from."""
        pinned, at = self._pinned[turn % 2], 0
        host = pinned.numpy()
        for array in rows.arrays:
            host[at : at + array.size] = array.ravel()
            at += _aligned(array.size)
        return self._buffer[:at], pinned[:at]

    def views(self, shape: StepShape) -> DeviceRows:
        """Where a step of `shape` finds its sections."""
        sections, at = [], 0
        for length in shape.lengths:
            sections.append(self._buffer[at : at + length])
            at += _aligned(length)
        token_at, positions, cells, slots, starts, counts, tiles = sections
        cut = tiles.view(-1, TILE_WIDTH)
        return DeviceRows(token_at, positions, cells, slots, starts, counts, cut, shape.decodes)


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
