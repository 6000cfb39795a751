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
    """`size` bytes in large pages for tensors that live as long as one another."""

    def __init__(self, size: int) -> None:
        self._bytes = zeros((size,), torch.uint8)
        self._used = 0

    @staticmethod
    def needs(tensor_bytes: int) -> int:
        """Of the room's bytes, for a tensor of that many."""
        return -(-tensor_bytes // 64) * 64

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy of `tensor` that lies here. ValueError where it does not fit any more."""
        end = self._used + tensor.nbytes
        if end > len(self._bytes):
            raise ValueError(f"{tensor.nbytes} bytes are more than is left")
        copy = self._bytes[self._used : end].view(tensor.dtype).view(tensor.shape)
        self._used += self.needs(tensor.nbytes)
        return copy.copy_(tensor)
