"""The Llama-family forward pass over one ragged batch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.runtime.attention import AttentionBackend, StepT
from engine.runtime.linear import Linear
from engine.runtime.model_config import ModelConfig
from engine.runtime.operators import Operators
from engine.runtime.ragged import RaggedBatch
from engine.runtime.rope import RotaryTable

Attend = Callable[[int, Tensor], Tensor]  # (layer, rotated qkv) -> what the heads attended to


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer; query, key and value products are fused, and gate and up."""

    attention_norm: Tensor
    qkv: Linear
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]: the norm weight of each q and k head
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


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
    layers: tuple[Layer, ...]
    final_norm: Tensor
    head: Linear
    rope: RotaryTable
    operators: Operators

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
