"""The block formats of GGUF files that hold one scale, and at most one offset, for 32 weights."""

import torch
from torch import Tensor

from engine.runtime.blocks import BLOCK, Blocks

_NIBBLES = BLOCK // 2  # bytes; the low halves are the first sixteen weights


def read_blocks(kind: str, data: Tensor) -> Blocks | None:
    """A tensor of GGUF type `kind` from its bytes [out, bytes of a row]; None for other types."""
    if kind == "Q4_1":
        scale, offset, numbers = _fields(data, 2, 2, _NIBBLES)
        return _made(4, _halves(numbers), _float16(scale), _float16(offset))
    if kind == "Q4_0":
        scale, numbers = _fields(data, 2, _NIBBLES)
        return _made(4, _halves(numbers), _float16(scale), -8 * _float16(scale))
    if kind == "Q8_0":
        scale, numbers = _fields(data, 2, BLOCK)
        return _made(8, numbers ^ 0x80, _float16(scale), -128 * _float16(scale))
    return None


def _fields(data: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    return torch.split(data.view(data.shape[0], -1, sum(sizes)), list(sizes), dim=-1)


def _float16(field: Tensor) -> Tensor:
    return field.contiguous().view(torch.float16).squeeze(-1)


def _halves(nibbles: Tensor) -> Tensor:
    return torch.cat((nibbles & 15, nibbles >> 4), dim=-1)


def _made(bits: int, numbers: Tensor, scale: Tensor, offset: Tensor) -> Blocks | None:
    # a power of two times a float16 is exact unless it is too large for one
    if not bool(torch.isfinite(offset).all()):
        return None
    return Blocks(bits, numbers.reshape(numbers.shape[0], -1), scale, offset)
