"""The paged KV cache: a pool of blocks on the device, and optionally one on the host."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.core.plan import Transfer
from engine.runtime.model_config import ModelConfig


class KVCache:
    """Keys and values of all layers, in blocks of `block_size` tokens.

    `blocks` is [layers, num_blocks, 2 * kv_heads, block_size, head_dim]; along the third axis come
    the key heads, then the value heads. One head of one block is contiguous, so attention gathers
    it as a single row and needs no transposition afterwards.
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
        self.blocks = torch.zeros(config.num_layers, num_blocks, *shape, dtype=dtype, device=device)
        self.host = torch.zeros(
            config.num_layers,
            host_blocks,
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
        for move in transfers:
            if not 0 <= move.host_block < self.host.shape[1]:
                raise ValueError(
                    f"host block {move.host_block} is outside the pool of {self.host.shape[1]}"
                )
            device, host = self.blocks[:, move.device_block], self.host[:, move.host_block]
            if move.to_host:
                host.copy_(device)
            else:
                device.copy_(host)
