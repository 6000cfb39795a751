"""One launch of a kernel as data: it can be run, or compiled ahead of time for a card elsewhere."""

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.runtime.kv_cache import NARROW

# The interpreter's tl.dot reads bfloat16's bits as integers (Triton 3.6 to 3.9), so products run in
# float32 there. Read when the kernels are defined, as @triton.jit itself does.
INTERPRETED: bool = triton.knobs.runtime.interpret
UPCAST = tl.constexpr(INTERPRETED)

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Launch:
    """`kernel[grid](*args, **meta)`; `meta` holds the constexpr arguments and the options."""

    kernel: Any  # triton.JITFunction, or its interpreted twin
    grid: tuple[int, ...]
    args: tuple[Tensor | int | float, ...]
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """`meta`, and what all kernels are compiled with: Triton 3.10 turns this one off."""
        return self.meta | {"enable_fp_fusion": True}

    def run(self) -> None:
        self.kernel[self.grid](*self.args, **self.options)


@triton.jit
def dot(a, b):
    """Product accumulated in float32; float32 operands are multiplied exactly, not as TF32."""
    if UPCAST:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


def contiguous_last(**tensors: Tensor) -> None:
    """ValueError for a tensor whose last dimension is strided."""
    for name, tensor in tensors.items():
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1 and tensor.numel():
            raise ValueError(f"{name} must be contiguous in its last dimension")


@functools.cache
def card_of(device: torch.device) -> int:
    """Compute capability, 90 for 9.0; where kernels are only interpreted, what is newest here."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def check_cache(cache: Tensor, card: int) -> None:
    """ValueError for an 8-bit format that the card cannot convert."""
    if card < NARROW.get(cache.dtype, 0):
        name, other = (
            str(form).removeprefix("torch.") for form in (cache.dtype, torch.float8_e5m2)
        )
        raise ValueError(f"compute capability {card // 10}.{card % 10} has no {name}; use {other}")


def multiprocessors(device: torch.device) -> int:
    """How many of its cores a grid must fill; 1 where kernels are interpreted."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
