"""The paged KV cache: a pool of blocks on the device, and optionally one on the host."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import Transfer
from engine.runtime import large_pages
from engine.runtime.model_config import ModelConfig
from engine.runtime.upload import upload

AT_ONCE = 16  # blocks that are moved through one buffer
PIECE = 256 << 20  # bytes of host memory taken at once
# 8-bit formats of the cache, with the first compute capability (89: 8.9) that converts them
NARROW = {torch.float8_e4m3fn: 89, torch.float8_e5m2: 80}


class KVCache:
    """Keys and values of all layers, in blocks of `block_size` tokens.

    `blocks` is [layers, num_blocks, 2 * kv_heads, block_size, head_dim]; along the third axis come
    the key heads, then the value heads. One head of one block is contiguous, so attention gathers
    it as a single row and needs no transposition afterwards. `host` holds whole blocks, [layers,
    ...] each, which move as one piece.

    `dtype` is the model's number format, `stored` that of the blocks where it is another: an 8-bit
    float, unscaled. Torch indexes no 8-bit floats, so `rows`, `cells` and `host` hold their bits.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        host_blocks: int = 0,
        stored: torch.dtype | None = None,
    ) -> None:
        self.dtype = dtype
        self.stored = stored or dtype
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.planes = 2 * config.num_kv_heads
        shape = (self.planes, block_size, config.head_dim)
        whole = (config.num_layers, num_blocks, *shape)
        bits = self.stored if self.stored.itemsize > 1 else torch.uint8
        self._bits = (
            large_pages.zeros(whole, bits)
            if device.type == "cpu"
            else torch.zeros(whole, dtype=bits, device=device)
        )
        self.blocks = self._bits.view(self.stored)
        one = (config.num_layers, *shape)
        self.host = _host_blocks(host_blocks, one, bits, pinned=device.type == "cuda")

    @property
    def nbytes(self) -> int:
        return self._bits.nbytes + sum(block.nbytes for block in self.host)

    def rows(self, layer: int) -> Tensor:
        """One layer as [num_blocks * planes, block_size * head_dim]: the unit of gathering."""
        return self._bits[layer].view(self.num_blocks * self.planes, -1)

    def cells(self, layer: int) -> Tensor:
        """One layer as [num_blocks * planes * block_size, head_dim]: the unit of writing."""
        return self._bits[layer].view(-1, self._bits.shape[-1])

    def narrow(self, values: Tensor) -> Tensor:
        """`values` as `cells` hold them; saturated at the largest number of an 8-bit format."""
        if self.stored == self.dtype:
            return values
        most = torch.finfo(self.stored).max
        return values.clamp(-most, most).to(self.stored).view(torch.uint8)

    def widen(self, kept: Tensor) -> Tensor:
        """What `rows` or `cells` hold, in the model's number format."""
        return kept if self.stored == self.dtype else kept.view(self.stored).to(self.dtype)

    def clear(self, blocks: Tensor) -> None:
        """Zero `blocks` (int64) before first use.

        Attention multiplies unwritten positions of a block by zero, and zero times the NaN that a
        previous owner may have left there is NaN.
        """
        self._bits.index_fill_(1, blocks, 0)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy each (source, target) block in order."""
        for source, target in pairs:
            self._bits[:, target].copy_(self._bits[:, source])

    def transfer(self, transfers: Sequence[Transfer]) -> None:
        """Move blocks between device and host, in order. ValueError for an unknown host block."""
        for to_host, moves in groupby(transfers, key=lambda move: move.to_host):
            for some in batched(moves, AT_ONCE):
                self._move(some, to_host=to_host)

    def _move(self, moves: Sequence[Transfer], *, to_host: bool) -> None:
        """Through a buffer on the device that holds whole blocks, as the host does: a copy of one

        that is scattered over the layers would wait for the device.
        """
        for move in moves:
            if not 0 <= move.host_block < len(self.host):
                raise ValueError(
                    f"host block {move.host_block} is outside the pool of {len(self.host)}"
                )
        blocks = upload(np.array([move.device_block for move in moves]), self._bits.device)
        if to_host:
            whole = self._bits.index_select(1, blocks).transpose(0, 1).contiguous()
            for piece, move in zip(whole, moves, strict=True):
                self.host[move.host_block].copy_(piece, non_blocking=True)
        else:
            whole = self._bits.new_empty(len(moves), *self.host[0].shape)
            for piece, move in zip(whole, moves, strict=True):
                piece.copy_(self.host[move.host_block], non_blocking=True)
            self._bits.index_copy_(1, blocks, whole.transpose(0, 1))


def _host_blocks(
    count: int, shape: tuple[int, ...], dtype: torch.dtype, *, pinned: bool
) -> list[Tensor]:
    """In pieces: torch takes pinned memory in powers of two, up to twice of what is asked for."""
    size = math.prod(shape) * dtype.itemsize
    at_once = max(1, PIECE // size)
    blocks: list[Tensor] = []
    while len(blocks) < count:
        some = min(at_once, count - len(blocks))
        try:
            piece = torch.zeros(some, *shape, dtype=dtype, pin_memory=pinned)
        except RuntimeError as error:
            raise MemoryError(
                f"the host has room for {len(blocks)} of {count} swapped KV blocks of {size} "
                f"bytes; set kernel.host_memory lower. Torch says: {error}"
            ) from error
        blocks += piece.unbind()
    return blocks


def batched(moves: Iterable[Transfer], size: int) -> Iterator[list[Transfer]]:
    """`moves` in lists of at most `size`."""
    rest = iter(moves)
    while some := list(islice(rest, size)):
        yield some
