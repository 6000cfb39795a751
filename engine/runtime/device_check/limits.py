"""What the device could do at best, measured in the same run as what it does."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.runtime.device_check.report import Row
from engine.runtime.device_check.target import Target
from engine.runtime.host_link import seconds_a_block
from engine.runtime.kv_cache import KVCache
from engine.runtime.model_config import ModelConfig

MOVED_BLOCKS = 64


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


def limit_rows(target: Target, shape: ModelConfig) -> Iterator[Row]:
    """The limits, and how fast KV moves to the host."""
    yield from measure_limits(target).rows()
    sizes = (MOVED_BLOCKS, 16, target.dtype, target.device, MOVED_BLOCKS)
    cache = KVCache(shape, *sizes)
    seconds = seconds_a_block(cache)
    name, moved = "KV of 16 tokens to the host or back", cache.host[0].nbytes
    yield Row(name, seconds * 1e6, "µs", more={"GB/s": moved / seconds / 1e9})


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
