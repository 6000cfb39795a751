"""Products with a model's weights at the rows of a decode step, beside reading the weights."""

from collections.abc import Iterator
from functools import partial
from itertools import cycle

import torch
from torch import Tensor

from engine.runtime.device_check.limits import Limits
from engine.runtime.device_check.report import Row
from engine.runtime.device_check.target import Target
from engine.runtime.linear import Linear, make_linear
from engine.runtime.model_config import ModelConfig


def product_rows(target: Target, shape: ModelConfig, limits: Limits) -> Iterator[Row]:
    """Each weight at each batch that a weight's reading bounds."""
    sizes = {
        "query, key, value": (shape.query_size + 2 * shape.kv_size, shape.hidden_size),
        "output": (shape.hidden_size, shape.query_size),
        "gate, up": (2 * shape.intermediate_size, shape.hidden_size),
        "down": (shape.hidden_size, shape.intermediate_size),
        "head": (shape.vocab_size, shape.hidden_size),
    }
    for name, (rows, width) in sizes.items():
        each = rows * width * target.dtype.itemsize
        # as many as a cache does not hold
        copies = 2 + target.sizes.stream_bytes // 8 // each
        made = [
            make_linear(torch.randn(rows, width, dtype=target.dtype, device=target.device))
            for _ in range(copies)
        ]
        for batch in (size for size in target.sizes.batches if size <= 64):
            x = torch.randn(batch, width, dtype=target.dtype, device=target.device)
            seconds = target.replayed(partial(_next_product, cycle(made), x), copies)
            yield Row(
                f"product {name}, batch {batch}",
                seconds * 1e6,
                "µs",
                share=each / seconds / limits.read,
                note="of reading its weight once",
            )


def _next_product(weights: Iterator[Linear], x: Tensor) -> Tensor:
    return next(weights)(x)
