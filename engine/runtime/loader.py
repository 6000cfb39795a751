"""Build a model from a Hugging Face folder or a GGUF file."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic

import torch
from torch import Tensor

from engine.runtime.blocks import Blocks, stacked
from engine.runtime.gguf_weights import GgufSource
from engine.runtime.linear import make_linear
from engine.runtime.model import Layer, LlamaModel, Model, ProductT, Weights
from engine.runtime.model_config import ModelConfig
from engine.runtime.native.library import WholeStep, whole_step_for
from engine.runtime.native.model import NativeLlama, fits
from engine.runtime.operators import make_operators
from engine.runtime.rope import RotaryTable
from engine.runtime.store import ORIGIN
from engine.runtime.weights import SafetensorsSource, WeightSource, require_shape

# layers read at once onto a card: one thread alone is bound by the copy out of the page cache
CARD_READERS = 8


def open_weights(
    path: Path, device: torch.device | None = None
) -> tuple[ModelConfig, SafetensorsSource | GgufSource]:
    """The shape of the model in the folder or .gguf file at `path`, and its weights, not yet read.

    All of them are there, in that shape. Raises UnsupportedModelError for an architecture, field or
    format that this engine does not compute, WeightsError for files that are missing, damaged or of
    another shape than configured.
    """
    if path.is_file():
        gguf = GgufSource(path)
        gguf.check(gguf.config)
        return gguf.config, gguf
    config, source = ModelConfig.from_folder(path), SafetensorsSource(path, device)
    source.check(config)
    return config, source


def load_model(path: Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> LlamaModel:
    """Load the folder or .gguf file at `path`; weights are converted to `dtype`.

    Raises what `open_weights` does.
    """
    place = torch.device(device)
    config, source = open_weights(path, place)
    # on a CPU each thread that computes would keep helpers of its own busy
    at_once = place.type == "cuda" and isinstance(source, SafetensorsSource)
    return build_model(config, source, dtype, place, CARD_READERS if at_once else 1)


def load_quickest(path: Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> Model:
    """As `load_model`, for whatever computes it soonest on this machine."""
    step = whole_step_for(dtype) if torch.device(device).type == "cpu" else None
    if step is None:
        return load_model(path, dtype, device)
    config, source = open_weights(path)
    if not fits(config):
        return load_model(path, dtype, device)
    origin = path / ORIGIN
    if origin.is_file():
        source = GgufSource(origin)
        source.check(config)
    return build_native(config, source, step)


def build_native(config: ModelConfig, source: WeightSource, step: WholeStep) -> NativeLlama:
    """Assemble a bfloat16 model of shape `config`, which `fits`, from named tensors.

    Weights that `source` keeps in blocks stay so.
    """
    parts = _NativeParts(config, source)
    tied = config.tied_head
    table = "model.embed_tokens", config.vocab_size, config.hidden_size
    return NativeLlama(
        config=config,
        embedding=None if tied else parts.weight(*table),
        head=parts.product("model.embed_tokens" if tied else "lm_head", *table[1:]),
        layers=map(parts.layer, range(config.num_layers)),
        final_norm=parts.norm("model.norm", config.hidden_size),
        rope=RotaryTable(config, config.context_length, torch.device("cpu")),
        step=step,
    )


def build_model(
    config: ModelConfig,
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    readers: int = 1,
) -> LlamaModel:
    """Assemble a model of shape `config` from named tensors, `readers` layers at a time."""
    parts = _Parts(config, source, dtype, device, make_linear)
    embedding = parts.weight("model.embed_tokens", config.vocab_size, config.hidden_size)
    head = embedding
    if not config.tied_head:
        head = parts.weight("lm_head", config.vocab_size, config.hidden_size)
    return LlamaModel(
        config=config,
        dtype=dtype,
        device=device,
        embedding=embedding,
        layers=parts.layers(readers),
        final_norm=parts.norm("model.norm", config.hidden_size),
        head=make_linear(head),
        rope=RotaryTable(config, config.context_length, device),
        operators=make_operators(config, dtype, device),
    )


class _Parts(Generic[ProductT]):
    """Reads named tensors, checks their shapes, and fuses those that are multiplied together.

    `make` is given the weight and the bias of each product.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        make: Callable[[Tensor, Tensor | None], ProductT],
    ) -> None:
        self._config = config
        self._source = source
        self._dtype = dtype
        self._device = device
        self._make = make

    def layers(self, readers: int) -> tuple[Layer[ProductT], ...]:
        every = range(self._config.num_layers)
        if readers == 1:
            return tuple(self.layer(index) for index in every)
        with ThreadPoolExecutor(readers) as pool:
            return tuple(pool.map(self.layer, every))

    def layer(self, index: int) -> Layer[ProductT]:
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

    def _fused(self, outputs: dict[str, int], inputs: int, *, bias: bool) -> ProductT:
        """One product for several weights with the same input; `outputs` is their rows by name."""
        weight = self._stacked({name + ".weight": (rows, inputs) for name, rows in outputs.items()})
        return self._make(weight, self._biases(outputs) if bias else None)

    def _biases(self, outputs: dict[str, int]) -> Tensor:
        return self._stacked({name + ".bias": (rows,) for name, rows in outputs.items()})

    def _stacked(self, parts: dict[str, tuple[int, ...]]) -> Tensor:
        """The tensors below each other; read one at a time, so that only one is there twice."""
        rows, rest = sum(shape[0] for shape in parts.values()), next(iter(parts.values()))[1:]
        whole = torch.empty(rows, *rest, dtype=self._dtype, device=self._device)
        at = 0
        for name, shape in parts.items():
            whole[at : at + shape[0]].copy_(self._read(name, *shape))
            at += shape[0]
        return whole

    def _qk_norm(self, prefix: str) -> Tensor:
        config = self._config
        query = self.norm(prefix + "q_norm", config.head_dim)
        key = self.norm(prefix + "k_norm", config.head_dim)
        return torch.cat((query.repeat(config.num_heads, 1), key.repeat(config.num_kv_heads, 1)))

    def _read(self, name: str, *shape: int) -> Tensor:
        tensor = self._source.get(name)
        require_shape(name, tuple(tensor.shape), shape)
        return tensor


class _NativeParts(_Parts[Weights]):
    """Leaves weights in blocks that the source keeps so."""

    def __init__(self, config: ModelConfig, source: WeightSource) -> None:
        super().__init__(config, source, torch.bfloat16, torch.device("cpu"), Weights)
        self._kept = source if isinstance(source, GgufSource) else None

    def product(self, name: str, *shape: int) -> Tensor | Blocks:
        """One weight [out, in] to multiply with."""
        blocks = self._blocks({name: shape[0]}, shape[1])
        return self.weight(name, *shape) if blocks is None else blocks

    def _fused(self, outputs: dict[str, int], inputs: int, *, bias: bool) -> Weights:
        blocks = self._blocks(outputs, inputs)
        if blocks is None:
            return super()._fused(outputs, inputs, bias=bias)
        return Weights(blocks, self._biases(outputs) if bias else None)

    def _blocks(self, outputs: dict[str, int], inputs: int) -> Blocks | None:
        """All of them, if they are in blocks of as many bits."""
        if self._kept is None:
            return None
        parts: list[Blocks] = []
        for name, rows in outputs.items():
            found = self._kept.blocks(name + ".weight")
            if found is None or (parts and parts[0].bits != found.bits):
                return None
            require_shape(name, tuple(found.shape), (rows, inputs))
            parts.append(found)
        return stacked(parts)
