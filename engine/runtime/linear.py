"""Matrix products with fixed weights, packed for the matrix units where that pays."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

# rows the packed layout is tuned for; other sizes run through the same layout
PACKED_ROWS = 32

Linear = Callable[[Tensor], Tensor]


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """Return x -> x @ weight.T + bias for x [rows, in]; `weight` is [out, in].

    On a CPU oneDNN keeps the weight in its own blocked layout, so that no call repacks it: about
    twice as fast at decode sizes. The caller should drop `weight`, which is copied.
    """
    if weight.device.type == "cpu" and packs(weight.dtype):
        onednn = torch.ops.mkldnn
        # torch exposes oneDNN's packed product under these names only
        packed = onednn._reorder_linear_weight(weight.contiguous(), PACKED_ROWS)  # noqa: SLF001
        product = onednn._linear_pointwise  # noqa: SLF001
        return lambda x: product(x, packed, bias, "none", [], "")
    if weight.device.type == "cuda":
        _add_in_float32()
    return lambda x: functional.linear(x, weight, bias)


def _add_in_float32() -> None:
    """Of a product that cuBLAS splits along its sums, torch lets it add the parts in 16 bits."""
    products = torch.backends.cuda.matmul
    products.allow_bf16_reduced_precision_reduction = False
    products.allow_fp16_reduced_precision_reduction = False


def packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies numbers of this format with instructions made for it here."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    return dtype == torch.float32 and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
