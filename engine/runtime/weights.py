"""Named tensors of a model, under Hugging Face names, from safetensors files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.runtime.model_config import ModelConfig


class WeightsError(ValueError):
    """The weight files are missing, damaged, or do not match the configuration."""


class WeightSource(Protocol):
    def get(self, name: str) -> Tensor:
        """The tensor called `name`, on the CPU. Raises WeightsError if there is none."""
        ...


class SafetensorsSource:
    """`model.safetensors`, or the shards that `model.safetensors.index.json` names; read lazily."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of: dict[str, Path] = {}
        single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
        if index.exists():
            mapping = json.loads(index.read_text())["weight_map"]
            self._file_of = {name: folder / file for name, file in mapping.items()}
        elif single.exists():
            with _opened(single) as file:
                self._file_of = dict.fromkeys(file.keys(), single)
        else:
            raise WeightsError(f"{folder} holds neither {single.name} nor {index.name}")

    def get(self, name: str) -> Tensor:
        if name not in self._file_of:
            raise WeightsError(f"{self._folder} has no tensor '{name}'")
        with _opened(self._file_of[name]) as file:
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


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"cannot read {path}: {error}") from error
