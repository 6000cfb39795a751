"""What a layer does between its matrix products: norms, rotation, activation, residual sums."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.runtime.model_config import ModelConfig
from engine.runtime.native.library import Kernels, kernels_for
from engine.runtime.rope import RotaryTable, rotate_

Rotation = Callable[[Tensor], None]


class Operators(Protocol):
    """For one model's shapes, number format and device."""

    def norm(self, stream: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm of `stream` (float32 [T, hidden]) in the model's number format."""
        ...

    def add_(self, stream: Tensor, delta: Tensor) -> None:
        """Add `delta` [T, hidden] to the residual stream."""
        ...

    def add_norm(self, stream: Tensor, delta: Tensor, weight: Tensor) -> Tensor:
        """`add_`, then `norm`."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of [T, 2 * size], gate first: [T, size]."""
        ...

    def rotation(self, table: RotaryTable, positions: Tensor) -> Rotation:
        """What rotates queries and keys of [T, heads + 2 * kv_heads, head_dim] in place.

        `positions` are int64 [T]. Made once a step.
        """
        ...


class TorchOperators:
    """In plain torch operators, for any device."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self._eps = config.rms_eps
        self._dtype = dtype
        self._rotating = config.num_heads + config.num_kv_heads

    def norm(self, stream: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(stream, weight.shape, weight, self._eps).to(self._dtype)

    def add_(self, stream: Tensor, delta: Tensor) -> None:
        stream.add_(delta)

    def add_norm(self, stream: Tensor, delta: Tensor, weight: Tensor) -> Tensor:
        self.add_(stream, delta)
        return self.norm(stream, weight)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def rotation(self, table: RotaryTable, positions: Tensor) -> Rotation:
        cos, sin = table.at(positions)
        return lambda heads: rotate_(heads[:, : self._rotating], cos, sin)


class NativeOperators:
    """In C++, on a CPU: one pass over memory each, and one call."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, kernels: Kernels) -> None:
        self._eps = config.rms_eps
        self._dtype = dtype
        self._rotating = config.num_heads + config.num_kv_heads
        self._kernels = kernels

    def norm(self, stream: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty(stream.shape, dtype=self._dtype)
        pointers = stream.data_ptr(), weight.data_ptr(), out.data_ptr()
        self._kernels.rms_norm(*pointers, *stream.shape, self._eps)
        return out

    def add_(self, stream: Tensor, delta: Tensor) -> None:
        self._kernels.add(stream.data_ptr(), delta.data_ptr(), stream.numel())

    def add_norm(self, stream: Tensor, delta: Tensor, weight: Tensor) -> Tensor:
        self.add_(stream, delta)
        return self.norm(stream, weight)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, size), dtype=self._dtype)
        self._kernels.silu_mul(gate_up.data_ptr(), out.data_ptr(), rows, size)
        return out

    def rotation(self, table: RotaryTable, positions: Tensor) -> Rotation:
        tables = positions.data_ptr(), table.cos.data_ptr(), table.sin.data_ptr()

        def rotate(heads: Tensor) -> None:
            rows, width, dim = heads.shape
            self._kernels.rotate(heads.data_ptr(), *tables, rows, width, self._rotating, dim)

        return rotate


def make_operators(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Operators:
    """The quickest there are for the device."""
    kernels = kernels_for(dtype) if device.type == "cpu" else None
    if kernels is None:
        return TorchOperators(config, dtype)
    return NativeOperators(config, dtype, kernels)
