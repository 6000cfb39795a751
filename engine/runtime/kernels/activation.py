"""The gated activation of the MLP."""

import triton
import triton.language as tl
from torch import Tensor

from engine.runtime.kernels.launch import Launch, contiguous_last

WIDTH = 1024  # elements of one program


@triton.jit
def silu_mul_kernel(gate_up, out, gate_stride, out_stride, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < SIZE
    place = gate_up + row * gate_stride + column
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + SIZE, mask=inside, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(out + row * out_stride + column, y.to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor, out: Tensor) -> None:
    """silu(gate) * up of `gate_up` [T, 2 * size], gate first, into `out` [T, size]."""
    silu_launch(gate_up, out).run()


def silu_launch(gate_up: Tensor, out: Tensor) -> Launch:
    contiguous_last(gate_up=gate_up, out=out)
    rows, size = out.shape
    return Launch(
        silu_mul_kernel,
        (rows, triton.cdiv(size, WIDTH)),
        (gate_up, out, gate_up.stride(0), out.stride(0)),
        {"SIZE": size, "WIDTH": WIDTH, "num_warps": 4},
    )
