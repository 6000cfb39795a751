"""Kernels against float64, and the overlapped executor's text against one step at a time."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from engine.core.config import KernelConfig
from engine.core.plan import Sampling
from engine.runtime.device_check.kernels import DRAWS, draw_inputs, form_name
from engine.runtime.device_check.mixed import Request, drive
from engine.runtime.device_check.report import Row
from engine.runtime.device_check.shapes import NARROW_HEAD_DIM, TEXT, attention_shape
from engine.runtime.device_check.target import Target
from engine.runtime.loader import build_model
from engine.runtime.model_config import ModelConfig
from engine.runtime.operators import TorchOperators
from engine.runtime.random_weights import RandomWeights, geometry
from engine.runtime.sampler import choose_in_torch

# largest difference from float64, of numbers about 1 in size: some roundings of the format
TOLERANCE = {torch.bfloat16: 0.03, torch.float16: 0.004}
SAME_DRAWS = 0.98  # kernels and torch round sums differently; a draw may fall on an edge


def kernel_checks(target: Target, shape: ModelConfig) -> Iterator[Row]:
    if not target.kernels:
        note = "a dry run has no card; TRITON_INTERPRET=1 interprets them"
        yield Row("kernels against float64", note=note)
        return
    for dtype in TOLERANCE:
        at = replace(target, dtype=dtype)
        for head_dim in target.sizes.head_dims:
            yield _attention_row(at, head_dim)
        yield _operators_row(at, shape)
    for stored in target.narrow:
        yield from _narrow_rows(replace(target, dtype=torch.bfloat16), stored)
    for name, draw in DRAWS.items():
        yield _draws_row(target, shape, name, *draw)


def text_row(target: Target) -> Row:
    """Random requests on a small fp32 model: two steps in flight with graphs, and neither."""
    shape = geometry(TEXT)
    weights = RandomWeights(shape, torch.float32, target.device)
    model = build_model(shape, weights, torch.float32, target.device)
    config = KernelConfig(
        num_blocks=160,  # fewer than the requests need at once: some give way
        max_running=16,
        max_step_tokens=128,
        max_context=shape.context_length,
        vocab_size=shape.vocab_size,
        host_blocks=64,
        max_in_flight=2,
    )
    rng = np.random.default_rng(1)
    requests = [
        Request(
            rng.integers(0, shape.vocab_size, rng.integers(1, 200)).astype(np.int32),
            int(rng.integers(1, 60)),
            Sampling(temperature=float(number % 2), seed=number, top_p=0.9),
        )
        for number in range(40)
    ]
    late = drive(target.executor(model, config), config, requests)
    serial_config = replace(config, max_in_flight=1)
    serial = drive(target.executor(model, config, graphs=False), serial_config, requests)
    same = sum(a == b for a, b in zip(late.texts, serial.texts, strict=True)) / len(requests)
    name = "overlapped text equals serial text"
    note = "fp32, preemption included"
    return Row(name, 100 * same, "% of requests", goal=100.0, note=note, must=True)


def _attention_row(target: Target, head_dim: int) -> Row:
    from engine.runtime.device_check.rows import PreparedRows

    rows = PreparedRows(target, attention_shape(head_dim), target.sizes.rows, target.dtype)
    with torch.inference_mode():
        exact = rows.exact()
        found = rows.attend()
    return _error(f"attention, head size {head_dim}", target.dtype, found, exact)


def _narrow_rows(target: Target, stored: torch.dtype) -> Iterator[Row]:
    """What is written to an 8-bit cache, and attention over what was written."""
    from engine.runtime.device_check.rows import PreparedRows

    rows = PreparedRows(target, attention_shape(NARROW_HEAD_DIM), target.sizes.rows, stored)
    with torch.inference_mode():
        wanted = rows.new()
        found = rows.attend()
        written = rows.written()
        exact = rows.exact()
    name = f"cache {form_name(stored)}"
    # numbers below the smallest normal one are rounded to a multiple of the smallest there is
    floor = torch.finfo(stored).smallest_normal
    off = float(((written - wanted).abs() / wanted.abs().clamp(min=floor)).max())
    bound = torch.finfo(stored).eps / 2 + torch.finfo(target.dtype).eps
    note = "largest relative difference: half of its last digit, and the model's"
    # the interpreter loses the carry of what is rounded up to a power of two
    must = not target.dry
    yield Row(f"{name}: what is written", off, goal=bound, at_most=True, note=note, must=must)
    yield _error(f"{name}: attention over it", target.dtype, found, exact)


def _operators_row(target: Target, shape: ModelConfig) -> Row:
    from engine.runtime.kernels.backend import TritonOperators

    quick, plain = TritonOperators(shape, target.dtype), TorchOperators(shape, torch.float64)
    stream = torch.randn(37, shape.hidden_size, device=target.device)
    delta = torch.randn(37, shape.hidden_size, device=target.device).to(target.dtype)
    weight = torch.rand(shape.hidden_size, device=target.device)
    exact_stream = stream.double()
    exact = plain.add_norm(exact_stream, delta.double(), weight.double())
    found = quick.add_norm(stream, delta, weight)
    gated = torch.randn(37, 2 * shape.intermediate_size, device=target.device).to(target.dtype)
    halves = quick.silu_mul(gated), plain.silu_mul(gated.double())
    return _error(
        "norm, residual sum, activation",
        target.dtype,
        torch.cat([part.flatten().double() for part in (found, stream, halves[0])]),
        torch.cat([part.flatten() for part in (exact, exact_stream, halves[1])]),
    )


def _error(name: str, dtype: torch.dtype, found: torch.Tensor, exact: torch.Tensor) -> Row:
    error = (found.double().cpu() - exact.double().cpu()).abs()
    size = exact.double().cpu().abs().clamp(min=1.0)
    worst = float((error / size).nan_to_num(nan=float("inf")).max())
    kind = str(dtype).removeprefix("torch.")
    goal, note = TOLERANCE[dtype], "largest difference from float64"
    return Row(f"{name}, {kind}", worst, goal=goal, at_most=True, note=note, must=True)


def _draws_row(
    target: Target, shape: ModelConfig, name: str, temperature: float, top_p: float, top_k: int
) -> Row:
    from engine.runtime.kernels.backend import TritonChoice

    rows = target.sizes.kernel_batch
    scores = 3 * torch.randn(rows, shape.vocab_size, device=target.device)
    choice = TritonChoice(rows, shape.vocab_size, target.device)
    inputs, best = draw_inputs(rows, temperature, top_p, top_k), scores.amax(-1)
    found = choice(scores.clone(), best, inputs)
    same = found == choose_in_torch(scores.clone(), best, inputs)
    share, goal = float(same.float().mean()), 100 * SAME_DRAWS
    return Row(f"draws of plain torch, {name}", 100 * share, "%", goal=goal, must=True)
