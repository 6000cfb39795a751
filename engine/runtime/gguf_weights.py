"""GGUF files read as if they were Hugging Face folders: same configuration, names and row order."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.runtime.blocks import Blocks
from engine.runtime.gguf_blocks import read_blocks
from engine.runtime.gguf_file import GgufError, GgufFile
from engine.runtime.model_config import (
    HF_ARCHITECTURES,
    HF_FAMILIES,
    ModelConfig,
    RopeScaling,
    UnsupportedModelError,
    positive_integer,
    positive_number,
)
from engine.runtime.rope import inverse_frequencies, llama3_divisors
from engine.runtime.weights import WeightsError, require_shape, tensor_shape, weight_names

TENSOR_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")

_GLOBAL_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class GgufSource:
    """A `WeightSource` over one GGUF file. Tensors come dequantised, as float32."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = GgufFile(path)
            self._tensors = self._file.tensors
            self.config = self._read_config()
        except GgufError as error:
            raise WeightsError(str(error)) from error
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{path}: {error}") from None

    def get(self, name: str) -> Tensor:
        from gguf.quants import dequantize

        stored = self._stored(gguf_name(name))
        self._check_type(stored)
        return self._in_order(name, torch.tensor(dequantize(stored.data, stored.tensor_type)))

    def check(self, config: ModelConfig) -> None:
        """Raise WeightsError unless every tensor of such a model is there in its shape,

        UnsupportedModelError where one is stored in a way that is not read.
        """
        for name in weight_names(config):
            stored = self._stored(gguf_name(name))
            actual = tuple(reversed(stored.shape.tolist()))
            try:
                require_shape(stored.name, actual, tensor_shape(name, config))
            except WeightsError as error:
                raise WeightsError(f"{self._path}: {error}") from None
            self._check_type(stored)

    def blocks(self, name: str) -> Blocks | None:
        stored = self._stored(gguf_name(name))
        found = read_blocks(stored.tensor_type.name, torch.tensor(stored.data))
        if found is None:
            return None
        return Blocks(found.bits, *(self._in_order(name, part) for part in found.parts()))

    def _in_order(self, name: str, tensor: Tensor) -> Tensor:
        """The rows of tensor `name` as Hugging Face has them."""
        if self.config.architecture == "LlamaForCausalLM":
            if ".q_proj." in name:
                return unpermute_rope_rows(tensor, self.config.num_heads)
            if ".k_proj." in name:
                return unpermute_rope_rows(tensor, self.config.num_kv_heads)
        return tensor

    def _stored(self, name: str) -> Any:
        if name not in self._tensors:
            raise WeightsError(f"{self._path} has no tensor '{name}'")
        return self._tensors[name]

    def _check_type(self, stored: Any) -> None:
        kind = stored.tensor_type.name
        if kind not in TENSOR_TYPES:
            raise UnsupportedModelError(
                f"{self._path}: tensor '{stored.name}' has type {kind}, which is not supported "
                f"(supported: {', '.join(TENSOR_TYPES)})"
            )

    def _field(self, key: str, default: Any = None) -> Any:
        value = self._file.field(key)
        return default if value is None else value

    def _need(self, key: str) -> Any:
        value = self._field(key)
        if value is None:
            raise UnsupportedModelError(f"it lacks the metadata key '{key}'")
        return value

    def _size(self, key: str, default: int | None = None) -> int:
        return positive_integer(
            key, self._need(key) if default is None else self._field(key, default)
        )

    def _number(self, key: str, default: float | None = None) -> float:
        return positive_number(
            key, self._need(key) if default is None else self._field(key, default)
        )

    def _read_config(self) -> ModelConfig:
        family = self._need("general.architecture")
        if family not in HF_ARCHITECTURES:
            raise UnsupportedModelError(
                f"GGUF architecture '{family}' is not supported "
                f"(supported: {', '.join(HF_ARCHITECTURES)})"
            )
        if self._field(f"{family}.expert_count"):
            raise UnsupportedModelError("mixture-of-experts models are not supported")
        heads = self._size(f"{family}.attention.head_count")
        hidden = self._size(f"{family}.embedding_length")
        head_dim = self._size(f"{family}.attention.key_length", hidden // heads)
        for key in ("attention.value_length", "rope.dimension_count"):
            if self._field(f"{family}.{key}", head_dim) != head_dim:
                raise UnsupportedModelError(f"'{family}.{key}' other than {head_dim} (key length)")
        architecture = HF_ARCHITECTURES[family]
        qkv_bias, qk_norm = HF_FAMILIES[architecture]
        output_bias = "blk.0.attn_output.bias" in self._tensors
        if "blk.0.attn_q.bias" in self._tensors and not (qkv_bias or output_bias):
            raise UnsupportedModelError(f"a bias on q alone is not supported for '{family}'")
        config = ModelConfig(
            architecture=architecture,
            vocab_size=int(self._stored("token_embd.weight").shape[-1]),
            hidden_size=hidden,
            intermediate_size=self._size(f"{family}.feed_forward_length"),
            num_layers=self._size(f"{family}.block_count"),
            num_heads=heads,
            num_kv_heads=self._size(f"{family}.attention.head_count_kv", heads),
            head_dim=head_dim,
            context_length=self._size(f"{family}.context_length"),
            rms_eps=self._number(f"{family}.attention.layer_norm_rms_epsilon"),
            rope_theta=self._number(f"{family}.rope.freq_base", 10_000.0),
            rope=self._read_rope(family),
            tied_head="output.weight" not in self._tensors,
            qkv_bias=qkv_bias or output_bias,
            output_bias=output_bias,
            mlp_bias="blk.0.ffn_down.bias" in self._tensors,
            qk_norm=qk_norm,
        )
        return self._with_rope_divisors(config)

    def _read_rope(self, family: str) -> RopeScaling:
        kind = self._field(f"{family}.rope.scaling.type", "none")
        context = self._size(f"{family}.context_length")
        return RopeScaling(
            kind="default" if kind == "none" else kind,
            factor=self._number(f"{family}.rope.scaling.factor", 1.0),
            original_context=self._size(f"{family}.rope.scaling.original_context_length", context),
        )

    def _with_rope_divisors(self, config: ModelConfig) -> ModelConfig:
        """Llama 3 models carry the divisors of their frequencies as a tensor: name the scaling."""
        if "rope_freqs.weight" not in self._tensors:
            return config
        divisors = torch.tensor(self._tensors["rope_freqs.weight"].data)
        scaling = RopeScaling("llama3", float(divisors.max()), original_context=8192)
        expected = llama3_divisors(inverse_frequencies(config)[0], scaling)
        if not torch.allclose(divisors, expected, rtol=1e-3):
            raise UnsupportedModelError("'rope_freqs.weight' is not the scaling of Llama 3")
        return replace(config, rope=scaling)


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor name."""
    stem, _, kind = name.rpartition(".")
    if stem in _GLOBAL_NAMES:
        return f"{_GLOBAL_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_LAYER_NAMES[part]}.{kind}"


def unpermute_rope_rows(tensor: Tensor, heads: int) -> Tensor:
    """Undo the interleaving of rotary pairs that llama.cpp applies to q and k rows of Llama models.

    `tensor` is [heads * head_dim, ...] with each head's pairs as (x0, y0, x1, y1, ...); the result
    has the half-split order (x0, x1, ..., y0, y1, ...) of Hugging Face.
    """
    pairs = tensor.shape[0] // heads // 2
    return tensor.reshape(heads, pairs, 2, -1).transpose(1, 2).reshape(tensor.shape)
