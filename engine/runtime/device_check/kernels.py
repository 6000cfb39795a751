"""Kernels alone, beside what the memory and the matrix units can do."""

from collections.abc import Iterator
from functools import partial
from itertools import cycle, product
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from engine.runtime.device_check.limits import Limits
from engine.runtime.device_check.products import product_rows
from engine.runtime.device_check.report import Row
from engine.runtime.device_check.shapes import one_layer
from engine.runtime.device_check.target import Target
from engine.runtime.model_config import ModelConfig
from engine.runtime.sampler import DrawInputs

if TYPE_CHECKING:  # triton may be absent
    from engine.runtime.kernels import SampleInputs
    from engine.runtime.kernels.backend import TritonChoice

DECODE_GOAL = 0.8  # of the copy bandwidth, batch 64 at the longest context
DRAWS = {  # temperature, top_p, top_k
    "greedy": (0.0, 1.0, 0),
    "hot": (1.0, 1.0, 0),
    "hot, top_p": (1.0, 0.9, 0),
    "hot, top_k": (1.0, 1.0, 40),
    "hot, top_k and top_p": (1.0, 0.9, 40),
}


def kernel_rows(target: Target, shape: ModelConfig, limits: Limits) -> Iterator[Row]:
    if not target.kernels:
        yield Row("kernel times", note="a dry run has no card; TRITON_INTERPRET=1 interprets them")
        return
    yield from _attention_rows(target, shape, limits)
    yield from _pointwise_rows(target, shape, limits)
    yield from _draw_rows(target, shape, limits)
    yield from product_rows(target, shape, limits)


def _attention_rows(target: Target, shape: ModelConfig, limits: Limits) -> Iterator[Row]:
    from engine.runtime.device_check.rows import PreparedRows

    batch = target.sizes.kernel_batch
    for context, stored in product(target.sizes.contexts, (target.dtype, *target.narrow)):
        rows = PreparedRows(target, one_layer(shape), [(context - 1, 1)] * batch, stored)
        seconds = target.replayed(rows.attend, target.sizes.layers)
        moved = batch * context * 2 * shape.kv_size * stored.itemsize
        exact = stored == target.dtype
        name = f"decode attention, batch {batch}, context {context}"
        yield Row(
            name if exact else f"{name}, cache {form_name(stored)}",
            seconds * 1e6,
            "µs",
            share=moved / seconds / limits.copy,
            goal=DECODE_GOAL if exact and context >= 8192 else None,
            note="of copying; with the rotation and the cache write",
        )
    yield from _cut_rows(target, shape, limits)
    tokens = target.sizes.prefills[-1]
    rows = PreparedRows(target, one_layer(shape), [(0, tokens)], target.dtype)
    seconds = target.seconds(rows.attend)
    flops = 2 * shape.query_size * tokens * (tokens + 1)
    yield Row(
        f"prefill attention, {tokens} tokens",
        seconds * 1e6,
        "µs",
        share=flops / seconds / limits.matrix,
        note="of the matrix rate; the triangle alone counted",
    )


def _cut_rows(target: Target, shape: ModelConfig, limits: Limits) -> Iterator[Row]:
    """Decode attention with contexts cut more coarsely and more finely than they are."""
    from engine.runtime.device_check.rows import PreparedRows

    sizes = target.sizes
    for batch, context, per_core in product(sizes.batches[:3], sizes.contexts, sizes.cuts):
        few = [(context - 1, 1)] * batch
        rows = PreparedRows(target, one_layer(shape), few, target.dtype, per_core=per_core)
        seconds = target.replayed(rows.attend, target.sizes.layers)
        moved = batch * context * 2 * shape.kv_size * target.dtype.itemsize
        name = f"{batch} x {context}, {per_core} items a multiprocessor"
        share = moved / seconds / limits.copy
        note = "of copying; what fits the card's cache is read from there"
        yield Row(f"decode attention, {name}", seconds * 1e6, "µs", share=share, note=note)


def _pointwise_rows(target: Target, shape: ModelConfig, limits: Limits) -> Iterator[Row]:
    from engine.runtime.kernels.backend import TritonOperators

    tokens, hidden, item = target.sizes.step_tokens, shape.hidden_size, target.dtype.itemsize
    operators = TritonOperators(shape, target.dtype)
    stream = torch.randn(tokens, hidden, device=target.device)
    delta = stream.to(target.dtype)
    weight = torch.ones(hidden, device=target.device)
    seconds = target.seconds(lambda: operators.add_norm(stream, delta, weight))
    yield _moved("residual and norm", tokens * hidden * (8 + 2 * item), seconds, limits)
    gate_up = torch.randn(
        tokens, 2 * shape.intermediate_size, dtype=target.dtype, device=target.device
    )
    seconds = target.seconds(lambda: operators.silu_mul(gate_up))
    yield _moved("activation", tokens * shape.intermediate_size * 3 * item, seconds, limits)


def _draw_rows(target: Target, shape: ModelConfig, limits: Limits) -> Iterator[Row]:
    from engine.runtime.kernels.backend import TritonChoice, parameters

    batch = target.sizes.kernel_batch
    choice = TritonChoice(batch, shape.vocab_size, target.device)
    # one alone would stay in the card's cache
    several = torch.randn(target.sizes.layers, batch, shape.vocab_size, device=target.device)
    for name, (heat, top_p, top_k) in DRAWS.items():
        given = parameters(draw_inputs(batch, heat, top_p, top_k), target.device)
        draw = partial(_draw_next, choice, cycle(several), given)
        seconds = target.replayed(draw, len(several))
        yield _moved(f"draw, batch {batch}, {name}", several[0].nbytes, seconds, limits)


def _draw_next(choice: "TritonChoice", scores: Iterator[Tensor], given: "SampleInputs") -> Tensor:
    return choice.drawn(next(scores), given)


def form_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def draw_inputs(rows: int, temperature: float, top_p: float, top_k: int) -> DrawInputs:
    """The same parameters for every row, and a seed of its own."""
    reals, whole = np.ones((6, rows), np.float32), np.zeros((4, rows), np.int32)
    reals[:3] = np.array([[temperature], [top_p], [0.0]])
    whole[0] = top_k
    everyone, nobody = None, np.empty(0, np.int64)
    return DrawInputs(
        slots=np.arange(rows),
        plain=False,
        reals=reals,
        whole=whole,
        seeds=np.arange(rows, dtype=np.uint64),
        chance=everyone if temperature else nobody,
        filtered=everyone if top_p < 1 or top_k else nobody,
        logprobs=np.full(rows, -1, np.int32),
    )


def _moved(name: str, size: int, seconds: float, limits: Limits) -> Row:
    share = size / seconds / limits.copy
    return Row(name, seconds * 1e6, "µs", share=share, note="of copying what it must")
