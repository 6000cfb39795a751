"""The Llama-family forward pass over one ragged batch."""

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
        config, operators = self.config, self.operators
        rotating = config.num_heads + config.num_kv_heads
        step = attention.prepare(batch)
        tokens = torch.from_numpy(batch.tokens).to(self.device)
        positions = torch.from_numpy(batch.positions).to(self.device)
        rotate = operators.rotation(self.rope, positions)
        stream = self.embedding.index_select(0, tokens).float()
        for index, layer in enumerate(self.layers):
            qkv = layer.qkv(operators.norm(stream, layer.attention_norm))
            heads = qkv.view(len(tokens), -1, config.head_dim)
            if layer.qk_norm is not None:
                rotated = heads[:, :rotating]
                unit = functional.rms_norm(
                    rotated.float(), (config.head_dim,), None, config.rms_eps
                )
                rotated.copy_(unit.mul_(layer.qk_norm))
            rotate(heads)
            operators.add_(stream, layer.output(attention.attend(index, heads, step)))
            gate_up = layer.gate_up(operators.norm(stream, layer.mlp_norm))
            operators.add_(stream, layer.down(operators.silu_mul(gate_up)))
        if not len(wanted):
            return stream.new_empty(0, config.vocab_size)
        return self.head(operators.norm(stream.index_select(0, wanted), self.final_norm))
