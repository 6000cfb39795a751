"""Memory in large pages, for what every step reads through: weights and the KV cache.

With pages of 4 KiB a step of a small model spends a tenth of its time on finding them.
"""

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

PAGE = 2 << 20  # bytes


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros on the CPU, all of it in memory. In large pages where there are any."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.zeros(shape, dtype=dtype)
    room = mmap.mmap(-1, size + PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
        with suppress(OSError):  # a kernel that was built without them
            room.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(room, dtype=torch.uint8)
    start = -whole.data_ptr() % PAGE
    # written now: a page that is first touched by a step would hold that up
    return whole[start : start + size].view(dtype).view(*shape).zero_()


class Room:
    """Large pages for tensors that live as long as one another, taken `share` bytes at a time."""

    def __init__(self, share: int = 16 * PAGE) -> None:
        self._share = share
        self._shares: list[Tensor] = []  # kept as long as the room, whoever has views of them
        self._left = torch.empty(0, dtype=torch.uint8)

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy of `tensor` that lies here, from a multiple of 64 on."""
        size = -(-tensor.nbytes // 64) * 64
        if size > len(self._left):
            self._left = zeros((max(size, self._share),), torch.uint8)
            self._shares.append(self._left)
        copy = self._left[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        self._left = self._left[size:]
        return copy.copy_(tensor)
