"""The paged KV cache: a pool of blocks on the device, and optionally one on the host."""

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


class KVCache:
    """Keys and values of all layers, in blocks of `block_size` tokens.

    `blocks` is [layers, num_blocks, 2 * kv_heads, block_size, head_dim]; along the third axis come
    the key heads, then the value heads. One head of one block is contiguous, so attention gathers
    it as a single row and needs no transposition afterwards. `host` is [host_blocks, layers, ...]:
    a whole block is contiguous there, and moves as one piece.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        host_blocks: int = 0,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.planes = 2 * config.num_kv_heads
        shape = (self.planes, block_size, config.head_dim)
        whole = (config.num_layers, num_blocks, *shape)
        self.blocks = (
            large_pages.zeros(whole, dtype)
            if device.type == "cpu"
            else torch.zeros(whole, dtype=dtype, device=device)
        )
        self.host = torch.zeros(
            host_blocks,
            config.num_layers,
            *shape,
            dtype=dtype,
            pin_memory=device.type == "cuda" and host_blocks > 0,
        )

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes + self.host.nbytes

    def rows(self, layer: int) -> Tensor:
        """One layer as [num_blocks * planes, block_size * head_dim]: the unit of gathering."""
        return self.blocks[layer].view(self.num_blocks * self.planes, -1)

    def cells(self, layer: int) -> Tensor:
        """One layer as [num_blocks * planes * block_size, head_dim]: the unit of writing."""
        return self.blocks[layer].view(-1, self.blocks.shape[-1])

    def clear(self, blocks: Tensor) -> None:
        """Zero `blocks` (int64) before first use.

        Attention multiplies unwritten positions of a block by zero, and zero times the NaN that a
        previous owner may have left there is NaN.
        """
        self.blocks.index_fill_(1, blocks, 0)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy each (source, target) block in order."""
        for source, target in pairs:
            self.blocks[:, target].copy_(self.blocks[:, source])

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
        blocks = upload(np.array([move.device_block for move in moves]), self.blocks.device)
        if to_host:
            whole = self.blocks.index_select(1, blocks).transpose(0, 1).contiguous()
            for piece, move in zip(whole, moves, strict=True):
                self.host[move.host_block].copy_(piece, non_blocking=True)
        else:
            whole = self.blocks.new_empty(len(moves), *self.host.shape[1:])
            for piece, move in zip(whole, moves, strict=True):
                piece.copy_(self.host[move.host_block], non_blocking=True)
            self.blocks.index_copy_(1, blocks, whole.transpose(0, 1))


def batched(moves: Iterable[Transfer], size: int) -> Iterator[list[Transfer]]:
    """`moves` in lists of at most `size`."""
    rest = iter(moves)
    while some := list(islice(rest, size)):
        yield some
