"""What a model's own files say about its shape: Hugging Face `config.json` or GGUF metadata."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.core.config import KernelConfig

STRETCHED = ("linear", "llama3", "yarn")
ROPE_KINDS = ("default", *STRETCHED)

# Hugging Face architecture -> (bias on q, k, v; RMSNorm on each head of q and k)
HF_FAMILIES: dict[str, tuple[bool, bool]] = {
    "LlamaForCausalLM": (False, False),
    "MistralForCausalLM": (False, False),
    "Qwen2ForCausalLM": (True, False),
    "Qwen3ForCausalLM": (False, True),
}
HF_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


class UnsupportedModelError(ValueError):
    """The files are readable, but describe something that this engine does not compute."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched; fields that a kind does not use keep their default."""

    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn; None derives it from `factor`
    truncate: bool = True  # yarn

    def __post_init__(self) -> None:
        if self.kind not in ROPE_KINDS:
            raise UnsupportedModelError(
                f"RoPE scaling '{self.kind}' is not supported (supported: {', '.join(ROPE_KINDS)})"
            )
        if self.kind in ("llama3", "yarn") and self.original_context < 1:
            raise UnsupportedModelError(
                f"RoPE scaling '{self.kind}' needs original_max_position_embeddings"
            )
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise UnsupportedModelError(
                f"RoPE scaling 'llama3' needs a low_freq_factor below its high_freq_factor, not "
                f"{self.low_freq_factor} and {self.high_freq_factor}"
            )


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder-only Llama-family model.

    `context_length` is the longest context that full attention computes correctly: a model with a
    sliding window is served up to its window.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_eps: float
    rope_theta: float
    rope: RopeScaling
    tied_head: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} KV heads evenly"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError(
                f"head_dim {self.head_dim} is odd, which RoPE cannot rotate"
            )

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Numbers of one layer that each position is multiplied with."""
        attention = self.hidden_size * (2 * self.query_size + 2 * self.kv_size)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def head_weights(self) -> int:
        """Numbers that a position is multiplied with for its logits."""
        return self.hidden_size * self.vocab_size

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Read `config.json`. Raises UnsupportedModelError naming the field that does not fit."""
        path = folder / "config.json"
        try:
            raw = json.loads(path.read_text())
        except OSError as error:
            raise UnsupportedModelError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise UnsupportedModelError(f"{path} is not valid JSON: {error}") from error
        if not isinstance(raw, dict):
            raise UnsupportedModelError(f"{path} must hold a JSON object")
        try:
            return cls.from_hf(raw)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{path}: {error}") from None

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> "ModelConfig":
        """Read the fields of a Hugging Face configuration, of transformers 4 or 5."""
        architecture = _hf_architecture(raw)
        _refuse(raw, "quantization_config", None)
        _refuse(raw, "hidden_act", "silu")
        qkv_bias, qk_norm = HF_FAMILIES[architecture]
        attention_bias = _flag(raw, "attention_bias")
        heads = _size(raw, "num_attention_heads")
        hidden = _size(raw, "hidden_size")
        context = _size(raw, "max_position_embeddings", 2048)
        rope_theta, rope = _hf_rope(raw, context)
        return cls(
            architecture=architecture,
            vocab_size=_size(raw, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_size(raw, "intermediate_size"),
            num_layers=_size(raw, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_size(raw, "num_key_value_heads", heads),
            head_dim=_size(raw, "head_dim", hidden // heads),
            context_length=min(context, _hf_window(raw, architecture) or context),
            rms_eps=_number(raw, "rms_norm_eps", 1e-6),
            rope_theta=rope_theta,
            rope=rope,
            tied_head=_flag(raw, "tie_word_embeddings"),
            qkv_bias=qkv_bias or attention_bias,
            output_bias=attention_bias and architecture != "Qwen2ForCausalLM",
            mlp_bias=_flag(raw, "mlp_bias"),
            qk_norm=qk_norm,
        )

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` that reads back as this configuration, here and in transformers."""
        raw: dict[str, Any] = {
            "architectures": [self.architecture],
            "model_type": self.architecture.removesuffix("ForCausalLM").lower(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context_length,
            "rms_norm_eps": self.rms_eps,
            "rope_theta": self.rope_theta,
            "hidden_act": "silu",
            "sliding_window": None,
            "tie_word_embeddings": self.tied_head,
            "attention_bias": self.output_bias,
            "mlp_bias": self.mlp_bias,
        }
        if self.rope.kind != "default":
            raw["rope_scaling"] = _rope_to_hf(self.rope)
        return raw


def _hf_architecture(raw: Mapping[str, Any]) -> str:
    named = raw.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else "none"
    if not isinstance(architecture, str) or architecture not in HF_FAMILIES:
        raise UnsupportedModelError(
            f"architecture '{architecture}' is not supported (supported: {', '.join(HF_FAMILIES)})"
        )
    return architecture


def _size(raw: Mapping[str, Any], field: str, default: int | None = None) -> int:
    """A positive integer; one that is null is not given."""
    value = raw.get(field)
    return positive_integer(field, default if value is None else value)


def _number(raw: Mapping[str, Any], field: str, default: float | None = None) -> float:
    """A positive number; one that is null is not given."""
    value = raw.get(field)
    return positive_number(field, default if value is None else value)


def _flag(raw: Mapping[str, Any], field: str) -> bool:
    value = raw.get(field)
    if not isinstance(value, bool | None):
        raise UnsupportedModelError(f"'{field}' must be true or false, not {value!r}")
    return bool(value)


def positive_integer(field: str, value: object) -> int:
    """`value` of `field`. Raises UnsupportedModelError where it is something else."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnsupportedModelError(f"'{field}' must be a positive integer, not {value!r}")
    return value


def positive_number(field: str, value: object) -> float:
    """`value` of `field`. Raises UnsupportedModelError where it is something else."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise UnsupportedModelError(f"'{field}' must be a positive number, not {value!r}")
    return float(value)


def _refuse(raw: Mapping[str, Any], field: str, supported: object) -> None:
    value = raw.get(field, supported)
    if value != supported:
        raise UnsupportedModelError(f"{field} = {value!r} is not supported (only {supported!r})")


def _hf_window(raw: Mapping[str, Any], architecture: str) -> int | None:
    """Tokens of the sliding window; None for full attention. Qwen may state one it does not use."""
    stated = architecture != "LlamaForCausalLM" and raw.get("sliding_window")
    if not stated or (architecture.startswith("Qwen") and not _flag(raw, "use_sliding_window")):
        return None
    return _size(raw, "sliding_window")


def _hf_rope(raw: Mapping[str, Any], context: int) -> tuple[float, RopeScaling]:
    """Base and scaling: `rope_parameters` of transformers 5, else `rope_theta`, `rope_scaling`."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise UnsupportedModelError(f"the RoPE scaling must be an object, not {given!r}")
    theta = _number(given, "rope_theta", _number(raw, "rope_theta", 10_000.0))
    if given.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor other than 1 is not supported")
    if given.get("mscale") or given.get("mscale_all_dim"):
        raise UnsupportedModelError("RoPE 'mscale' is not supported")
    kind = given.get("rope_type") or given.get("type") or "default"
    stretched = (
        None if given.get("attention_factor") is None else _number(given, "attention_factor")
    )
    scaling = RopeScaling(
        kind=kind,
        # who stretches says by how much: a guess would make another model
        factor=_number(given, "factor", None if kind in STRETCHED else 1.0),
        original_context=_size(given, "original_max_position_embeddings", context),
        low_freq_factor=_number(given, "low_freq_factor", 1.0),
        high_freq_factor=_number(given, "high_freq_factor", 4.0),
        beta_fast=_number(given, "beta_fast", 32.0),
        beta_slow=_number(given, "beta_slow", 1.0),
        attention_factor=stretched,
        truncate=_flag({"truncate": True} | given, "truncate"),
    )
    return theta, scaling


def check_fits(shape: ModelConfig, config: KernelConfig) -> None:
    """ValueError if the kernel may plan what a model of this shape cannot compute."""
    if config.max_context > shape.context_length:
        raise ValueError(
            f"max_context {config.max_context} exceeds the model's {shape.context_length}"
        )
    if config.vocab_size != shape.vocab_size:
        raise ValueError(
            f"vocab_size {config.vocab_size} differs from the model's {shape.vocab_size}"
        )


def _rope_to_hf(rope: RopeScaling) -> dict[str, Any]:
    raw: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind in ("llama3", "yarn"):
        raw["original_max_position_embeddings"] = rope.original_context
    if rope.kind == "llama3":
        raw |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        raw |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow}
        raw |= {"truncate": rope.truncate}
        if rope.attention_factor is not None:
            raw["attention_factor"] = rope.attention_factor
    return raw
