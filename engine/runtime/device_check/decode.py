"""Decode steps through the executor, two in flight: time, share of the bandwidth, host, gaps."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch

from engine.core.config import KernelConfig
from engine.runtime.device_check.clients import StreamingClients
from engine.runtime.device_check.limits import Limits
from engine.runtime.device_check.report import Row
from engine.runtime.device_check.steps import Batch
from engine.runtime.device_check.target import Target
from engine.runtime.gpu.executor import GpuExecutor
from engine.runtime.gpu.memory import block_bytes, weight_bytes
from engine.runtime.gpu.results import Ticket
from engine.runtime.model import LlamaModel

STEP_GOAL = 0.85  # of the read bandwidth, at batch 1 to 64 and context 1k
GAP_GOAL = 50.0  # µs between steps, median
SKIPPED = 6  # steps at first whose predecessors were still being launched


@dataclass(frozen=True, slots=True)
class Paces:
    """Medians, in seconds: of a whole step, the host's part of it, and the device's idle gap."""

    step: float
    host: float
    gap: float


def decode_rows(
    target: Target, model: LlamaModel, executor: GpuExecutor, config: KernelConfig, limits: Limits
) -> Iterator[Row]:
    """For every batch and context; then the gap beside the load of streaming clients."""
    for context in target.sizes.contexts:
        for size in target.sizes.batches:
            yield decode_row(target, model, executor, config, limits, size, context, model.dtype)
    sizes = target.sizes
    batch = Batch(min(64, config.max_running), sizes.contexts[0], config, room=sizes.steps)
    clients = StreamingClients(sizes.clients)
    alone = run_steps(target, executor, batch, nullcontext(), None)
    crowded = run_steps(target, executor, batch, clients, clients.hand_out)
    name = f"gap between steps, batch {batch.size}"
    # a launch that comes too late also shows in the step: its gap ends where it begins
    more = {"step ms": alone.step * 1e3}
    yield Row(name, alone.gap * 1e6, "µs", goal=GAP_GOAL, at_most=True, more=more)
    yield Row(
        f"{name}, beside {sizes.clients} clients",
        crowded.gap * 1e6,
        "µs",
        goal=GAP_GOAL,
        at_most=True,
        note="their chunks are written and read on a second thread",
        more={"step ms": crowded.step * 1e3},
    )


def decode_row(
    target: Target,
    model: LlamaModel,
    executor: GpuExecutor,
    config: KernelConfig,
    limits: Limits,
    size: int,
    context: int,
    kv_dtype: torch.dtype,
) -> Row:
    """`size` sequences that know `context` tokens, in a cache of format `kv_dtype`."""
    name = f"decode step, batch {size}, context {context}"
    batch = Batch(size, context, config, room=target.sizes.steps)
    needed = size * batch.blocks * block_bytes(model.config, kv_dtype, config.block_size)
    if not batch.fits or size > config.max_running:
        return Row(name, note=f"its KV of {needed / 2**30:.0f} GiB does not fit")
    found = run_steps(target, executor, batch, nullcontext(), None)
    per_token = block_bytes(model.config, kv_dtype, 1)
    moved = read_weights(model) + size * (batch.context + target.sizes.steps / 2) * per_token
    return Row(
        name,
        found.step * 1e3,
        "ms",
        share=moved / limits.read / found.step,
        goal=STEP_GOAL if context <= 1024 and size <= 64 else None,
        note="weights and KV read once",
        more={"host ms": found.host * 1e3, "gap µs": found.gap * 1e6, "tok/s": size / found.step},
    )


def read_weights(model: LlamaModel) -> int:
    """Bytes of weights that a decode step reads: all, but of the embedding only its own rows."""
    shape = model.config
    embedding = (
        0 if shape.tied_head else shape.vocab_size * shape.hidden_size * model.dtype.itemsize
    )
    return weight_bytes(shape, model.dtype) - embedding - 8 * shape.context_length * shape.head_dim


def run_steps(
    target: Target,
    executor: GpuExecutor,
    batch: Batch,
    beside: AbstractContextManager[object],
    hand_out: Callable[[], None] | None,
) -> Paces:
    """Decode `steps` times, each step launched before the previous one is waited for."""
    tickets: list[Ticket] = []
    host: list[float] = []
    with beside:
        for step in range(target.sizes.steps):
            began = time.perf_counter()
            tickets.append(executor.launch(batch.decode(step)))
            host.append(time.perf_counter() - began)
            if step:
                executor.wait(tickets[-2])
                if hand_out:
                    hand_out()
        executor.wait(tickets[-1])
    executor.wait(executor.launch(batch.leave()))
    steady = tickets[min(SKIPPED, len(tickets) // 2) :]
    pairs = list(pairwise(steady))
    steps = [later.ended.nanoseconds_since(earlier.ended) for earlier, later in pairs]
    gaps = [later.began.nanoseconds_since(earlier.ended) for earlier, later in pairs]
    return Paces(median(steps) / 1e9, median(host), median(gaps) / 1e9)
