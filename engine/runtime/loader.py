"""Build a model from a Hugging Face folder or a GGUF file."""

from pathlib import Path

import torch
from torch import Tensor

from engine.runtime.gguf_weights import GgufSource
from engine.runtime.linear import Linear, make_linear
from engine.runtime.model import Layer, LlamaModel
from engine.runtime.model_config import ModelConfig
from engine.runtime.operators import make_operators
from engine.runtime.rope import RotaryTable
from engine.runtime.weights import SafetensorsSource, WeightsError, WeightSource


def load_model(path: Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> LlamaModel:
    """Load the folder or .gguf file at `path`; weights are converted to `dtype`.

    Raises UnsupportedModelError for an architecture or field that this engine does not compute,
    WeightsError for files that are missing, damaged or of another shape than configured.
    """
    if path.is_file():
        gguf = GgufSource(path)
        return build_model(gguf.config, gguf, dtype, torch.device(device))
    config = ModelConfig.from_folder(path)
    return build_model(config, SafetensorsSource(path), dtype, torch.device(device))


def build_model(
    config: ModelConfig, source: WeightSource, dtype: torch.dtype, device: torch.device
) -> LlamaModel:
    """Assemble a model of shape `config` from named tensors."""
    parts = _Parts(config, source, dtype, device)
    embedding = parts.weight("model.embed_tokens", config.vocab_size, config.hidden_size)
    head = embedding
    if not config.tied_head:
        head = parts.weight("lm_head", config.vocab_size, config.hidden_size)
    return LlamaModel(
        config=config,
        dtype=dtype,
        device=device,
        embedding=embedding,
        layers=tuple(parts.layer(index) for index in range(config.num_layers)),
        final_norm=parts.norm("model.norm", config.hidden_size),
        head=make_linear(head),
        rope=RotaryTable(config, config.context_length, device),
        operators=make_operators(config, dtype, device),
    )


class _Parts:
    """Reads named tensors, checks their shapes, and fuses those that are multiplied together."""

    def __init__(
        self, config: ModelConfig, source: WeightSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config = config
        self._source = source
        self._dtype = dtype
        self._device = device

    def layer(self, index: int) -> Layer:
        config = self._config
        prefix = f"model.layers.{index}."
        attention = prefix + "self_attn."
        projections = {
            attention + "q_proj": config.query_size,
            attention + "k_proj": config.kv_size,
            attention + "v_proj": config.kv_size,
        }
        mlp = {prefix + f"mlp.{name}_proj": config.intermediate_size for name in ("gate", "up")}
        output = {attention + "o_proj": config.hidden_size}
        down = {prefix + "mlp.down_proj": config.hidden_size}
        return Layer(
            attention_norm=self.norm(prefix + "input_layernorm", config.hidden_size),
            qkv=self._fused(projections, config.hidden_size, bias=config.qkv_bias),
            qk_norm=self._qk_norm(attention) if config.qk_norm else None,
            output=self._fused(output, config.query_size, bias=config.output_bias),
            mlp_norm=self.norm(prefix + "post_attention_layernorm", config.hidden_size),
            gate_up=self._fused(mlp, config.hidden_size, bias=config.mlp_bias),
            down=self._fused(down, config.intermediate_size, bias=config.mlp_bias),
        )

    def norm(self, name: str, size: int) -> Tensor:
        return self._read(name + ".weight", size).to(self._device, torch.float32)

    def weight(self, name: str, *shape: int) -> Tensor:
        return self._read(name + ".weight", *shape).to(self._device, self._dtype)

    def _fused(self, outputs: dict[str, int], inputs: int, *, bias: bool) -> Linear:
        """One product for several weights with the same input; `outputs` is their rows by name."""
        weight = torch.cat([self.weight(name, rows, inputs) for name, rows in outputs.items()])
        if not bias:
            return make_linear(weight)
        biases = [self._read(name + ".bias", rows) for name, rows in outputs.items()]
        return make_linear(weight, torch.cat(biases).to(self._device, self._dtype))

    def _qk_norm(self, prefix: str) -> Tensor:
        config = self._config
        query = self.norm(prefix + "q_norm", config.head_dim)
        key = self.norm(prefix + "k_norm", config.head_dim)
        return torch.cat((query.repeat(config.num_heads, 1), key.repeat(config.num_kv_heads, 1)))

    def _read(self, name: str, *shape: int) -> Tensor:
        tensor = self._source.get(name)
        if tuple(tensor.shape) != shape:
            raise WeightsError(
                f"tensor '{name}' has shape {tuple(tensor.shape)}, configured is {shape}"
            )
        return tensor
