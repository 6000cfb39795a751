"""What the device could do at best, measured in the same run as what it does."""

from dataclasses import dataclass

import torch

from engine.runtime.device_check.report import Row
from engine.runtime.device_check.target import Target


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes a second read, bytes a second moved by a copy (both ways counted), FLOP a second."""

    read: float
    copy: float
    matrix: float

    def rows(self) -> list[Row]:
        return [
            Row(
                "limit: reading memory", self.read / 1e9, "GB/s", note="the best of two reductions"
            ),
            Row("limit: copying memory", self.copy / 1e9, "GB/s", note="read and written bytes"),
            Row("limit: matrix product", self.matrix / 1e12, "TFLOP/s", note="the model's format"),
        ]


def measure_limits(target: Target) -> Limits:
    read, copy = _memory(target)
    side = target.sizes.matrix
    a = torch.randn(side, side, dtype=target.dtype, device=target.device)
    b = torch.randn(side, side, dtype=target.dtype, device=target.device)
    matrix = 2 * side**3 / target.seconds(lambda: a @ b)
    return Limits(read, copy, matrix)


def _memory(target: Target) -> tuple[float, float]:
    size = target.sizes.stream_bytes
    source = torch.ones(size // 4, dtype=torch.float32, device=target.device)
    goal = torch.empty_like(source)
    read = size / min(target.seconds(source.sum), target.seconds(source.amax))
    return read, 2 * size / target.seconds(lambda: goal.copy_(source))
