"""Weights of few bits in blocks that share a scale and an offset, as GGUF files hold them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 32  # inputs


@dataclass(frozen=True, slots=True)
class Blocks:
    """A weight [out, in] that is scale * numbers + offset.

    `numbers` [out, in], uint8, are below 2 ** `bits`; `scale` and `offset` [out, in / 32] float16.
    """

    bits: int
    numbers: Tensor
    scale: Tensor
    offset: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.numbers, self.scale, self.offset

    def dequantised(self) -> Tensor:
        """The weight in float32, each number rounded once."""
        rows, size = self.shape
        numbers = self.numbers.view(rows, -1, BLOCK).double()
        exact = numbers * self.scale.double()[..., None] + self.offset.double()[..., None]
        return exact.view(rows, size).float()


def stacked(parts: Sequence[Blocks]) -> Blocks:
    """Weights with the same inputs and as many bits, one below the other."""
    (bits,) = {part.bits for part in parts}
    return Blocks(
        bits, *(torch.cat(same) for same in zip(*(p.parts() for p in parts), strict=True))
    )
