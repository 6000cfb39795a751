"""Named tensors of a model, under Hugging Face names, from safetensors files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.runtime.model_config import ModelConfig


class WeightsError(ValueError):
    """The weight files are missing, damaged, or do not match the configuration."""


# what weights may be stored as; integers and 8-bit floats mean nothing without scales of their own
FORMATS = ("F64", "F32", "F16", "BF16")


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
            self._file_of = _read_index(index)
        elif single.exists():
            with _opened(single, self._device) as file:
                self._file_of = dict.fromkeys(file.keys(), single)
        else:
            raise WeightsError(f"{folder} holds neither {single.name} nor {index.name}")

    def get(self, name: str) -> Tensor:
        with _opened(self._place(name), self._device) as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def check(self, config: ModelConfig) -> None:
        """Raise WeightsError unless every tensor of such a model is there, in a format to compute

        with. Reads the heads of the files only.
        """
        places = {name: self._place(name) for name in weight_names(config)}
        for path in dict.fromkeys(places.values()):
            with _opened(path, torch.device("cpu")) as file:
                there = set(file.keys())
                for name in (name for name, place in places.items() if place == path):
                    if name not in there:
                        raise WeightsError(f"{path} has no tensor '{name}', where the index has it")
                    _check_stored(path, name, file.get_slice(name), tensor_shape(name, config))

    def _place(self, name: str) -> Path:
        if name not in self._file_of:
            raise WeightsError(f"{self._folder} has no tensor '{name}'")
        return self._file_of[name]


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


def require_shape(name: str, actual: tuple[int, ...], configured: tuple[int, ...]) -> None:
    """Raise WeightsError where the tensor `name` is not of the shape that is configured."""
    if actual != configured:
        raise WeightsError(f"tensor '{name}' has shape {actual}, configured is {configured}")


def _check_stored(path: Path, name: str, stored: Any, shape: tuple[int, ...]) -> None:
    try:
        require_shape(name, tuple(stored.get_shape()), shape)
    except WeightsError as error:
        raise WeightsError(f"{path}: {error}") from None
    if stored.get_dtype() not in FORMATS:
        raise WeightsError(
            f"{path}: tensor '{name}' has format {stored.get_dtype()}, which is not supported "
            f"(supported: {', '.join(FORMATS)})"
        )


def _read_index(path: Path) -> dict[str, Path]:
    """The file of each tensor. Raises WeightsError."""
    try:
        mapping = json.loads(path.read_text())["weight_map"]
        return {name: path.parent / file for name, file in mapping.items()}
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"{path} must hold a JSON object whose weight_map names a file for each tensor"
        ) from error


def _opened(path: Path, device: torch.device) -> safe_open:
    try:
        path.open("rb").close()  # safetensors says of all files it cannot open that there are none
        return safe_open(path, framework="pt", device=str(device))
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WeightsError(f"cannot read {path}: {reason}") from error
