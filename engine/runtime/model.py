"""The Llama-family forward pass over one ragged batch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from engine.runtime.attention import AttentionBackend, StepT
from engine.runtime.blocks import Blocks
from engine.runtime.kv_cache import KVCache
from engine.runtime.linear import Linear
from engine.runtime.model_config import ModelConfig
from engine.runtime.native.attention import make_attention
from engine.runtime.operators import Operators
from engine.runtime.ragged import RaggedBatch
from engine.runtime.rope import RotaryTable

Attend = Callable[[int, Tensor], Tensor]  # (layer, rotated qkv) -> what the heads attended to

# Logits [W, vocab] of W wanted flat positions (int64) of a batch whose keys and values it stores.
Forward = Callable[[RaggedBatch, Tensor], Tensor]


class Model(Protocol):
    """A model on one device, whatever computes it."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def wants_clean_blocks(self) -> bool:
        """Whether unwritten positions of a block must be zero."""
        ...

    @property
    def weight_bytes(self) -> tuple[int, int]:
        """What a step reads of weights to multiply with: of all layers, and for logits."""
        ...

    def bind(self, cache: KVCache) -> Forward:
        """The forward pass over `cache`, for one thread at a time."""
        ...


class Weights(NamedTuple):
    """What a product is made of: [out, in], and [out] or nothing."""

    weight: Tensor | Blocks
    bias: Tensor | None


ProductT = TypeVar("ProductT")


@dataclass(frozen=True, slots=True)
class Layer(Generic[ProductT]):
    """One decoder layer; query, key and value products are fused, and gate and up."""

    attention_norm: Tensor
    qkv: ProductT
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]: the norm weight of each q and k head
    output: ProductT
    mlp_norm: Tensor
    gate_up: ProductT
    down: ProductT


@dataclass(frozen=True, slots=True)
class LlamaModel:
    """Weights of one model on one device, and its forward pass.

    The residual stream and the norms (their weights too) are float32 whatever `dtype` is: in
    bfloat16 the stream would lose a little at each of its 2 * layers additions.
    """

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    embedding: Tensor  # [vocab, hidden]
    layers: tuple[Layer[Linear], ...]
    final_norm: Tensor
    head: Linear
    rope: RotaryTable
    operators: Operators

    @property
    def wants_clean_blocks(self) -> bool:
        """Yes: rows of several positions are attended to in whole blocks."""
        return True

    @property
    def weight_bytes(self) -> tuple[int, int]:
        size, config = self.dtype.itemsize, self.config
        return size * config.num_layers * config.layer_weights, size * config.head_weights

    def bind(self, cache: KVCache) -> Forward:
        """The forward pass over `cache`, with the quickest attention there is for it."""
        return partial(self.forward, attention=make_attention(self.config, cache))

    def forward(
        self, batch: RaggedBatch, wanted: Tensor, attention: AttentionBackend[StepT]
    ) -> Tensor:
        """Compute every position of `batch`, storing its keys and values.

        `wanted` (int64) are flat positions; returns their logits [len(wanted), vocab] in `dtype`.
        """
        step = attention.prepare(batch)
        tokens = torch.from_numpy(batch.tokens).to(self.device)
        positions = torch.from_numpy(batch.positions).to(self.device)
        last = self.compute(
            tokens, positions, wanted, lambda layer, qkv: attention.attend(layer, qkv, step)
        )
        if not len(wanted):
            return last.new_empty(0, self.config.vocab_size)
        return self.head(last)

    def compute(self, tokens: Tensor, positions: Tensor, wanted: Tensor, attend: Attend) -> Tensor:
        """From tensors on the device: what `head` takes for the `wanted` positions, [W, hidden].

        `tokens`, `positions` [T] and `wanted` [W] are int32 or int64.
        """
        config, operators = self.config, self.operators
        rotating = config.num_heads + config.num_kv_heads
        rotate = operators.rotation(self.rope, positions)
        stream = self.embedding.index_select(0, tokens).float()
        normed = operators.norm(stream, self.layers[0].attention_norm)
        for index, layer in enumerate(self.layers):
            heads = layer.qkv(normed).view(len(tokens), -1, config.head_dim)
            if layer.qk_norm is not None:
                rotated = heads[:, :rotating]
                unit = functional.rms_norm(
                    rotated.float(), (config.head_dim,), None, config.rms_eps
                )
                rotated.copy_(unit.mul_(layer.qk_norm))
            rotate(heads)
            normed = operators.add_norm(stream, layer.output(attend(index, heads)), layer.mlp_norm)
            change = layer.down(operators.silu_mul(layer.gate_up(normed)))
            if index + 1 < len(self.layers):
                normed = operators.add_norm(stream, change, self.layers[index + 1].attention_norm)
            else:
                operators.add_(stream, change)
        return operators.norm(stream.index_select(0, wanted), self.final_norm)
