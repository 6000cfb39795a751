"""RMSNorm with the sum into the residual stream before it."""

import triton
import triton.language as tl
from torch import Tensor

from engine.runtime.kernels.launch import Launch, contiguous_last


@triton.jit
def norm_kernel(
    stream, delta, weight, out, eps, stream_stride, delta_stride, out_stride,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < HIDDEN
    place = stream + row * stream_stride + column
    x = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(delta + row * delta_stride + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(place, x, mask=inside)
    factor = tl.rsqrt(tl.sum(x * x, 0) / HIDDEN + eps)
    y = x * factor * tl.load(weight + column, mask=inside, other=0.0)
    tl.store(out + row * out_stride + column, y.to(out.dtype.element_ty), mask=inside)


def rms_norm_add(
    stream: Tensor, delta: Tensor | None, weight: Tensor, out: Tensor, eps: float
) -> None:
    """Add `delta` [T, hidden] to the residual `stream` (float32, in place); its norm into `out`.

    `weight` is float32 [hidden]; without `delta` the stream is only read. `out` [T, hidden] may
    have any float type.
    """
    norm_launch(stream, delta, weight, out, eps).run()


def norm_launch(
    stream: Tensor, delta: Tensor | None, weight: Tensor, out: Tensor, eps: float
) -> Launch:
    added = stream if delta is None else delta
    contiguous_last(stream=stream, delta=added, weight=weight, out=out)
    rows, hidden = stream.shape
    width = triton.next_power_of_2(hidden)
    return Launch(
        norm_kernel,
        (rows,),
        (stream, added, weight, out, eps, stream.stride(0), added.stride(0), out.stride(0)),
        {
            "HIDDEN": hidden,
            "WIDTH": width,
            "ADD": delta is not None,
            "num_warps": 4 if width <= 4096 else 8,
        },
    )
