"""A model with random weights on the device, an executor of it, and what is measured with both."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from engine.core.config import KernelConfig
from engine.runtime.device_check.decode import decode_row, decode_rows
from engine.runtime.device_check.limits import measure_limits
from engine.runtime.device_check.prefill import prefill_rows
from engine.runtime.device_check.report import Row
from engine.runtime.device_check.target import Target
from engine.runtime.device_check.waiting import waiting_rows
from engine.runtime.gpu.executor import GpuExecutor
from engine.runtime.gpu.graphs import buckets
from engine.runtime.gpu.memory import GIB, MIB, MemoryPlan, block_bytes, plan_memory
from engine.runtime.loader import CARD_READERS, build_model
from engine.runtime.model import LlamaModel
from engine.runtime.model_config import ModelConfig
from engine.runtime.random_weights import RandomWeights


@dataclass(frozen=True, slots=True)
class Loaded:
    """`executor` is not warmed up; `planned` says how memory was divided for it."""

    model: LlamaModel
    executor: GpuExecutor
    config: KernelConfig
    planned: MemoryPlan


def load(target: Target, shape: ModelConfig, kv_dtype: torch.dtype | None = None) -> Loaded:
    """With as many KV blocks as the device has room for, of at most what the contexts need."""
    sizes = target.sizes
    longer = replace(shape, context_length=max(sizes.contexts) + 2 * sizes.steps)
    config, planned = _sized(target, longer, kv_dtype or target.dtype)
    weights = RandomWeights(longer, target.dtype, target.device)
    readers = 1 if target.dry else CARD_READERS
    model = build_model(longer, weights, target.dtype, target.device, readers)
    return Loaded(model, target.cold(model, config, kv_dtype=kv_dtype), config, planned)


def step_rows(target: Target, shape: ModelConfig) -> Iterator[Row]:
    """What a start takes, whether launches wait, decode steps, prefill, and the memory left."""
    limits = measure_limits(target)
    loaded = load(target, shape)
    model, executor, config = loaded.model, loaded.executor, loaded.config
    yield _start_row(target, executor, config)
    yield from waiting_rows(target, executor, config)
    yield from decode_rows(target, model, executor, config, limits)
    yield from prefill_rows(target, executor, config, limits, model.config)
    left = target.memory()[0] / GIB
    yield Row("memory left", left, "GiB", note=f"planned: {loaded.planned}")


def narrow_rows(target: Target, shape: ModelConfig) -> Iterator[Row]:
    """Decode steps with an 8-bit cache, at the longest context."""
    limits, form = measure_limits(target), target.narrow[0]
    loaded = load(target, shape, form)
    loaded.executor.warm_up()
    context = target.sizes.contexts[-1]
    for size in target.sizes.batches[-2:]:
        row = decode_row(
            target, loaded.model, loaded.executor, loaded.config, limits, size, context, form
        )
        yield replace(row, name=f"{row.name}, 8-bit cache")


def _start_row(target: Target, executor: GpuExecutor, config: KernelConfig) -> Row:
    """Capture and warm-up: how long, and what graphs and libraries keep of the memory."""
    before, began = target.memory()[0], time.perf_counter()
    executor.warm_up()
    seconds = time.perf_counter() - began
    count = len(buckets(config.max_running))
    kept = (before - target.memory()[0]) / MIB
    return Row(
        "start: graphs captured, kernels compiled",
        seconds,
        "s",
        more={"graphs": count, "MiB kept": kept, "MiB a graph, if all were theirs": kept / count},
    )


def _sized(
    target: Target, shape: ModelConfig, kv_dtype: torch.dtype
) -> tuple[KernelConfig, MemoryPlan]:
    sizes = target.sizes
    config = KernelConfig(
        num_blocks=1,
        max_running=sizes.running,
        max_step_tokens=sizes.step_tokens,
        max_context=shape.context_length,
        vocab_size=shape.vocab_size,
        max_in_flight=2,
        min_chunk=min(32, sizes.step_tokens // 2),
        max_queued_tokens=1 << 40,
    )
    free, total = target.memory()
    planned = plan_memory(shape, target.dtype, config, total=total, free=free)
    useful = sizes.running * -(-config.max_context // config.block_size)
    blocks = planned.blocks(block_bytes(shape, kv_dtype, config.block_size), None, useful)
    return replace(config, num_blocks=blocks), planned
