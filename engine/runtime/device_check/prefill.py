"""One prompt in one step: the share of the matrix rate."""

from collections.abc import Iterator
from statistics import median

from engine.core.config import KernelConfig
from engine.runtime.device_check.limits import Limits
from engine.runtime.device_check.report import Row
from engine.runtime.device_check.steps import Batch
from engine.runtime.device_check.target import Target
from engine.runtime.gpu.executor import GpuExecutor
from engine.runtime.model_config import ModelConfig

GOAL = 0.6  # of the matrix rate, at 8k tokens
REPEATS = 3


def prefill_rows(
    target: Target, executor: GpuExecutor, config: KernelConfig, limits: Limits, shape: ModelConfig
) -> Iterator[Row]:
    for tokens in target.sizes.prefills:
        batch = Batch(1, tokens, config)
        seconds = median(_run(executor, batch) for _ in range(REPEATS))
        yield Row(
            f"prefill of {tokens} tokens",
            seconds * 1e3,
            "ms",
            share=prefill_flops(shape, tokens) / seconds / limits.matrix,
            goal=GOAL if tokens >= 8192 else None,
            note="causal attention counted by half",
            more={"tok/s": tokens / seconds},
        )


def _run(executor: GpuExecutor, batch: Batch) -> float:
    ticket = executor.launch(batch.prefill())
    executor.wait(ticket)
    executor.wait(executor.launch(batch.leave()))
    return ticket.ended.nanoseconds_since(ticket.began) / 1e9


def prefill_flops(shape: ModelConfig, tokens: int) -> float:
    """Of the matrix products: layers for every token, attention's triangle, the head once."""
    attention = shape.hidden_size * (2 * shape.query_size + 2 * shape.kv_size)
    layer = attention + 3 * shape.hidden_size * shape.intermediate_size
    triangle = 2 * shape.query_size * tokens * (tokens + 1) / 2
    head = shape.hidden_size * shape.vocab_size
    return 2.0 * (shape.num_layers * (layer * tokens + triangle) + head)
