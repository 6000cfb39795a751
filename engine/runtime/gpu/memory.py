"""How a card's memory is divided: weights, what a step needs, graphs, a reserve, and KV."""

from dataclasses import dataclass

import torch

from engine.core.config import KernelConfig
from engine.runtime.gpu.graphs import buckets, most_rows
from engine.runtime.model_config import ModelConfig

MIB, GIB = 1 << 20, 1 << 30

# Of the card: for what torch's allocator cannot use in between, and libraries' workspaces.
RESERVE_SHARE, SMALLEST_RESERVE = 0.03, GIB
# A graph's own nodes and arguments. Its activations are those of a step: all graphs share one pool.
GRAPH_BYTES = 8 * MIB
# Of drawing, for each logit, where every row has penalties: a float32 copy, the scores, those that
# change, what was seen and counted of each token, and three more while the two are put together.
DRAW_BYTES = 4 * 8
FLOAT = 4


class NotEnoughMemoryError(ValueError):
    """The card has no room for the model as configured; the message has the numbers."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes. `free` is what the card has before anything of the model's is there."""

    total: int
    free: int
    weights: int
    activations: int
    graphs: int

    @property
    def reserve(self) -> int:
        return max(SMALLEST_RESERVE, round(RESERVE_SHARE * self.total))

    @property
    def kv(self) -> int:
        """What is left for KV; negative where even the rest does not fit."""
        return self.free - self.weights - self.activations - self.graphs - self.reserve

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "activations": self.activations,
            "graphs": self.graphs,
            "reserve": self.reserve,
        }
        spent = ", ".join(f"{name} {_gib(size)}" for name, size in parts.items())
        return f"{_gib(self.free)} free of {_gib(self.total)}; {spent}"

    def blocks(self, block_bytes: int, wanted: int | None, useful: int) -> int:
        """KV blocks: as many as fit, at most `useful`; or the `wanted` bytes, which must fit.

        NotEnoughMemoryError if they do not, or if not even one block does.
        """
        if wanted is not None and wanted > self.kv:
            raise NotEnoughMemoryError(
                f"kernel.kv_memory asks for {_gib(wanted)} and {_gib(max(0, self.kv))} are left "
                f"for KV: {self}"
            )
        if self.kv < block_bytes:
            raise NotEnoughMemoryError(
                f"the model does not fit: {_gib(block_bytes - self.kv)} are missing before the "
                f"first KV block: {self}"
            )
        return max(
            1, wanted // block_bytes if wanted is not None else min(useful, self.kv // block_bytes)
        )


def plan_memory(
    model: ModelConfig, dtype: torch.dtype, kernel: KernelConfig, *, total: int, free: int
) -> MemoryPlan:
    """Divide `free` of `total` bytes for a model served with the sizes of `kernel`."""
    return MemoryPlan(
        total=total,
        free=free,
        weights=weight_bytes(model, dtype),
        activations=activation_bytes(model, dtype, kernel),
        graphs=GRAPH_BYTES * len(buckets(kernel.max_running)),
    )


def weight_bytes(model: ModelConfig, dtype: torch.dtype) -> int:
    """Weights as they are on the card; norms and rotation tables are in float32."""
    heads = model.num_heads + 2 * model.num_kv_heads
    attention = model.hidden_size * model.head_dim * (heads + model.num_heads)
    layer = attention + 3 * model.hidden_size * model.intermediate_size
    tables = model.vocab_size * model.hidden_size * (1 if model.tied_head else 2)
    norms = (2 * model.num_layers + 1) * model.hidden_size
    rotation = 2 * model.context_length * model.head_dim
    return (model.num_layers * layer + tables) * dtype.itemsize + FLOAT * (norms + rotation)


def activation_bytes(model: ModelConfig, dtype: torch.dtype, kernel: KernelConfig) -> int:
    """An upper bound of what a step's tensors take, and of the tables that stay between steps."""
    heads = 2 * model.num_heads + 2 * model.num_kv_heads  # q, k and v, and what was attended to
    wide = 3 * model.hidden_size + heads * model.head_dim + 3 * model.intermediate_size
    positions = max(kernel.max_step_tokens, most_rows(kernel.max_running))
    step = positions * (FLOAT * model.hidden_size + dtype.itemsize * wide)
    logits = kernel.max_running * model.vocab_size * (dtype.itemsize + DRAW_BYTES)
    blocks = -(-kernel.max_context // kernel.block_size)
    tables = FLOAT * kernel.max_running * (kernel.max_context + 2 * blocks)
    return step + logits + tables


def block_bytes(model: ModelConfig, dtype: torch.dtype, block_size: int) -> int:
    """Keys and values of one block, in all layers."""
    return 2 * model.num_layers * model.kv_size * block_size * dtype.itemsize


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
