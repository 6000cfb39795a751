"""Named tensors of a model, under Hugging Face names, from safetensors files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.runtime.model_config import ModelConfig


class WeightsError(ValueError):
    """The weight files are missing, damaged, or do not match the configuration."""


class WeightSource(Protocol):
    def get(self, name: str) -> Tensor:
        """The tensor called `name`, on the CPU or where it is used; may be called by any thread.

        Raises WeightsError if there is none.
        """
        ...


class SafetensorsSource:
    """`model.safetensors`, or the shards that `model.safetensors.index.json` names; read lazily,

    and straight to `device`.
    """

    def __init__(self, folder: Path, device: torch.device | None = None) -> None:
        self._folder = folder
        self._device = device or torch.device("cpu")
        self._file_of: dict[str, Path] = {}
        single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
        if index.exists():
            mapping = json.loads(index.read_text())["weight_map"]
            self._file_of = {name: folder / file for name, file in mapping.items()}
        elif single.exists():
            with _opened(single, self._device) as file:
                self._file_of = dict.fromkeys(file.keys(), single)
        else:
            raise WeightsError(f"{folder} holds neither {single.name} nor {index.name}")

    def get(self, name: str) -> Tensor:
        if name not in self._file_of:
            raise WeightsError(f"{self._folder} has no tensor '{name}'")
        with _opened(self._file_of[name], self._device) as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor


def weight_names(config: ModelConfig) -> Iterator[str]:
    """Hugging Face names of every tensor that a model of this shape has."""
    yield "model.embed_tokens.weight"
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight"
        yield prefix + "post_attention_layernorm.weight"
        for name in ("q", "k", "v"):
            yield prefix + f"self_attn.{name}_proj.weight"
            if config.qkv_bias:
                yield prefix + f"self_attn.{name}_proj.bias"
        yield prefix + "self_attn.o_proj.weight"
        if config.output_bias:
            yield prefix + "self_attn.o_proj.bias"
        if config.qk_norm:
            yield prefix + "self_attn.q_norm.weight"
            yield prefix + "self_attn.k_norm.weight"
        for name in ("gate", "up", "down"):
            yield prefix + f"mlp.{name}_proj.weight"
            if config.mlp_bias:
                yield prefix + f"mlp.{name}_proj.bias"
    yield "model.norm.weight"
    if not config.tied_head:
        yield "lm_head.weight"


def tensor_shape(name: str, config: ModelConfig) -> tuple[int, ...]:
    """Shape of the tensor of that Hugging Face name."""
    part, kind = name.split(".")[-2:]
    if part in ("q_norm", "k_norm"):
        return (config.head_dim,)
    if part.endswith("norm"):
        return (config.hidden_size,)
    hidden, inner = config.hidden_size, config.intermediate_size
    sizes = {
        "q_proj": (config.query_size, hidden),
        "k_proj": (config.kv_size, hidden),
        "v_proj": (config.kv_size, hidden),
        "o_proj": (hidden, config.query_size),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }
    shape = sizes.get(part, (config.vocab_size, hidden))
    return shape[:1] if kind == "bias" else shape


def _opened(path: Path, device: torch.device) -> safe_open:
    try:
        path.open("rb").close()  # safetensors says of all files it cannot open that there are none
        return safe_open(path, framework="pt", device=str(device))
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WeightsError(f"cannot read {path}: {reason}") from error
