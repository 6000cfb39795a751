"""Random weights of a named geometry: to measure speed without a download. Its text means nothing.

The geometries are those of the models' published `config.json`.
"""

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from engine.runtime.model_config import ModelConfig, RopeScaling
from engine.runtime.weights import tensor_shape

SPREAD = 0.02  # standard deviation, as models are initialised; norms are 1


def _llama(**sizes: int) -> ModelConfig:
    defaults = {"vocab_size": 128256, "num_kv_heads": 8, "head_dim": 128, "context_length": 8192}
    return ModelConfig(
        architecture="LlamaForCausalLM",
        rms_eps=1e-5,
        rope_theta=500_000.0,
        rope=RopeScaling(),
        tied_head=False,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        **(defaults | sizes),
    )


GEOMETRIES: Mapping[str, ModelConfig] = {
    "llama-3-8b": _llama(hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32),
    "llama-3-70b": _llama(hidden_size=8192, intermediate_size=28672, num_layers=80, num_heads=64),
    # for tests and dry runs: no model has these sizes
    "tiny": _llama(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        context_length=1024,
    ),
}


def geometry(name: str) -> ModelConfig:
    """Raises ValueError naming those there are."""
    if name not in GEOMETRIES:
        raise ValueError(f"no geometry is called '{name}'; there are {', '.join(GEOMETRIES)}")
    return GEOMETRIES[name]


class RandomWeights:
    """A weight source that makes each tensor where it is used; the same for the same seed."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int = 0
    ) -> None:
        self._config = config
        self._dtype = dtype
        self._device = device
        self._seed = seed

    def get(self, name: str) -> Tensor:
        """A fresh tensor; its content depends on the seed and its name."""
        shape = tensor_shape(name, self._config)
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        if "norm" in name:
            return tensor.fill_(1.0)
        generator = torch.Generator(self._device)
        generator.manual_seed(zlib.crc32(name.encode(), self._seed))
        return tensor.normal_(0.0, SPREAD, generator=generator)
