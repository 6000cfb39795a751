"""What the machine under the engine can do: its matrix rate and its memory bandwidth."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.runtime import large_pages
from engine.runtime.linear import make_linear, packs
from engine.runtime.model_config import ModelConfig
from engine.sim.profile import StepShape

SIDE = 2048  # of the matrices multiplied
BUFFER = 256 << 20  # bytes copied: far more than any cache holds
TRIES = 9  # the best counts: a limit is what the machine can do, not what it usually does


@dataclass(frozen=True, slots=True)
class Machine:
    """Operations a second of a large matrix product, and bytes a second read and written by a

    copy, with the threads of the engine. The product is of `numbers`: the model's, or float32
    where the processor has no instructions for these.
    """

    flops: float
    bandwidth: float
    numbers: str


def measure(dtype: torch.dtype) -> Machine:
    """For a model in `dtype`, on the calling thread."""
    multiplied = dtype if packs(dtype) else torch.float32
    matrix = make_linear(torch.randn(SIDE, SIDE).to(multiplied))
    rows = torch.randn(SIDE, SIDE).to(multiplied)
    source, target = (large_pages.zeros((BUFFER,), torch.uint8) for _ in range(2))
    with torch.inference_mode():
        product = _best(lambda: matrix(rows))
        copy = _best(lambda: target.copy_(source))
    numbers = str(multiplied).removeprefix("torch.")
    return Machine(2 * SIDE**3 / product, 2 * BUFFER / copy, numbers)


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(TRIES):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least time of a step: all its arithmetic at the matrix rate, or all that it must read,

    the weights once and the keys and values once, at the bandwidth; whichever takes longer.
    `weight_bytes` are those of all layers and of the head.
    """

    machine: Machine
    config: ModelConfig
    weight_bytes: tuple[int, int]
    kv_number_bytes: int

    def seconds(self, shape: StepShape) -> float:
        """For a step of that shape; only its decoding sequences are taken to need logits."""
        config, tokens = self.config, shape.prefill_tokens + shape.decode_sequences
        layers, head = config.num_layers * config.layer_weights, config.head_weights
        drawing = shape.decode_sequences
        attended = shape.prefill_context + shape.context_tokens
        flops = 2.0 * (layers * tokens + head * drawing)
        flops += 4.0 * config.num_layers * config.query_size * attended
        size = self.weight_bytes[0] + (self.weight_bytes[1] if drawing else 0)
        kv_numbers = 2 * config.num_layers * config.kv_size * shape.context_tokens
        size += self.kv_number_bytes * kv_numbers
        return max(flops / self.machine.flops, size / self.machine.bandwidth)
