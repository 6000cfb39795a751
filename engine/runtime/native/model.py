"""A Llama-family model whose whole step is one call into C++, with weights packed for it."""

import ctypes
import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.runtime.blocks import BLOCK, Blocks
from engine.runtime.kv_cache import KVCache
from engine.runtime.large_pages import Room
from engine.runtime.model import Forward, Layer, Weights
from engine.runtime.model_config import ModelConfig
from engine.runtime.native.attention import MOST_DIM, MOST_GROUP
from engine.runtime.native.library import WholeStep
from engine.runtime.ragged import RaggedBatch
from engine.runtime.rope import RotaryTable

# Of what sizes are multiples: two panels of the widest lanes, sixteen pairs of a head's numbers.
MULTIPLE = 32
PRODUCTS = ("qkv", "output", "gate_up", "down")  # of a layer


def fits(config: ModelConfig) -> bool:
    """Whether a model's sizes divide into whole panels, and the kernels have room for its heads."""
    return (
        config.head_dim % MULTIPLE == 0
        and config.head_dim <= MOST_DIM
        and config.num_heads // config.num_kv_heads <= MOST_GROUP
        and config.hidden_size % MULTIPLE == 0
        and config.intermediate_size % MULTIPLE == 0
    )


def pack(weight: Tensor, lanes: int) -> Tensor:
    """`weight` [out, in] in panels of `lanes` as packed.h has them, zeros up to whole multiples."""
    rows, size = weight.shape
    padded = weight.new_zeros(-(-rows // MULTIPLE) * MULTIPLE, size)
    padded[:rows] = weight
    return padded.view(-1, lanes, size // 2, 2).transpose(1, 2).contiguous()


def alternate(stacked: Tensor, lanes: int) -> Tensor:
    """Gate over up [2 * size, ...] in turns of `lanes`: what one item of work needs of both."""
    pairs = stacked.view(2, -1, lanes, *stacked.shape[1:])
    return pairs.transpose(0, 1).reshape(stacked.shape)


def pack_blocks(blocks: Blocks, lanes: int, inputs: int) -> Tensor:
    """The same of blocks, as block.h has them: uint8 [panels, in / 32, bytes of a block].

    A pair of `inputs` of an output lies side by side, or if that is 1 in the halves of a word.
    """
    bits, count = blocks.bits, blocks.shape[1] // BLOCK
    padding = -blocks.shape[0] % MULTIPLE
    numbers, scale, offset = (functional.pad(part, (0, 0, 0, padding)) for part in blocks.parts())
    outputs = (-1, inputs, lanes // inputs)  # of panels, in as many parts
    words = numbers.view(*outputs, count, bits // inputs, 32 // bits, inputs).int()
    places = torch.arange(0, 32, bits, dtype=torch.int32)
    if inputs == 1:
        places = places.view(2, -1).T.reshape(-1)
    packed = (words << places[:, None]).sum(-2, dtype=torch.int32).permute(0, 3, 4, 1, 2, 5)
    shared = [part.view(*outputs, count).permute(0, 3, 2, 1) for part in (scale, offset)]
    fields = [part.flatten(2).contiguous().view(torch.uint8) for part in (*shared, packed)]
    return torch.cat(fields, dim=-1)


class _Fields(ctypes.Structure):
    """Filled by name, with tensors and arrays as their addresses."""

    def fill(self, **values: object) -> None:
        for name, value in values.items():
            setattr(self, name, _address(value))


def _address(value: object) -> object:
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, np.ndarray):
        return value.__array_interface__["data"][0]
    return value


def _pointers(names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_void_p) for name in names.split()]


def _matrix(name: str) -> list[tuple[str, type]]:
    """As in matrix.h."""
    return [*_pointers(name), *_numbers(name + "_bits")]


def _numbers(names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_int64) for name in names.split()]


class _Layer(_Fields):
    _fields_ = [
        *_pointers("attention_norm qk_norm mlp_norm"),
        *(field for name in PRODUCTS for field in _matrix(name)),
        *_pointers(" ".join(name + "_bias" for name in PRODUCTS)),
    ]


class _Model(_Fields):
    _fields_ = [
        *_numbers("layers hidden intermediate heads kv_heads dim padded_vocab"),
        *_pointers("layer embedding"),
        *_matrix("head"),
        *_pointers("final_norm cosines sines"),
        *(("eps", ctypes.c_float), ("scale", ctypes.c_float)),
    ]


class _Step(_Fields):
    _fields_ = [
        *_numbers("tokens rows wanted table_blocks layer_numbers block"),
        *_pointers("ids positions row_of starts counts offsets tables wanted_tokens"),
        *_pointers("cache stream normed qkv mixed active logits"),
    ]


class NativeLlama:
    """Weights of one model, held once. For bfloat16 on a processor that has a whole `step`.

    `embedding` is None where the head's weights are the embedding.
    """

    def __init__(
        self,
        config: ModelConfig,
        embedding: Tensor | None,
        head: Tensor | Blocks,
        layers: Iterable[Layer[Weights]],
        final_norm: Tensor,
        rope: RotaryTable,
        step: WholeStep,
    ) -> None:
        self.config = config
        self.dtype = torch.bfloat16
        self.device = torch.device("cpu")
        self.wants_clean_blocks = False  # nothing is read beyond a sequence's end
        self.step = step
        self._kept: list[object] = []  # what the structs point to
        self._room = Room()
        self._layers = (_Layer * config.num_layers)()
        pairs = zip(self._layers, layers, strict=True)
        in_layers = sum(self._fill(fields, layer) for fields, layer in pairs)
        packed, bits = self._packed(head)
        self.weight_bytes = in_layers, packed.nbytes
        self.padded_vocab = packed.shape[0] * step.lanes
        self.fields = _Model()
        self.fields.fill(
            layers=config.num_layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            dim=config.head_dim,
            padded_vocab=self.padded_vocab,
            layer=ctypes.addressof(self._layers),
            embedding=None if embedding is None else self._room.keep(embedding),
            head=packed,
            head_bits=bits,
            final_norm=self._keep(final_norm),
            cosines=self._keep(rope.cos),
            sines=self._keep(rope.sin),
            eps=config.rms_eps,
            scale=1.0 / math.sqrt(config.head_dim),
        )

    def bind(self, cache: KVCache) -> Forward:
        """The forward pass over `cache`."""
        return _NativeForward(self, cache)

    def _fill(self, fields: _Layer, layer: Layer[Weights]) -> int:
        """Returns the bytes of the layer's products."""
        size = 0
        for name in ("attention_norm", "qk_norm", "mlp_norm"):
            fields.fill(**{name: self._keep(getattr(layer, name))})
        for name in PRODUCTS:
            weight, bias = getattr(layer, name)
            if name == "gate_up":
                weight = self._in_turns(weight)
                bias = None if bias is None else alternate(bias, self.step.lanes)
            packed, bits = self._packed(weight)
            exact = self._keep(None if bias is None else bias.float())
            fields.fill(**{name: packed, name + "_bits": bits, name + "_bias": exact})
            size += packed.nbytes
        return size

    def _in_turns(self, stacked: Tensor | Blocks) -> Tensor | Blocks:
        lanes = self.step.lanes
        if isinstance(stacked, Tensor):
            return alternate(stacked, lanes)
        return Blocks(stacked.bits, *(alternate(part, lanes) for part in stacked.parts()))

    def _packed(self, weight: Tensor | Blocks) -> tuple[Tensor, int]:
        """The weight as it is multiplied, and how many bits each of its numbers has."""
        if isinstance(weight, Blocks):
            packed = pack_blocks(weight, self.step.lanes, self.step.inputs)
            return self._room.keep(packed), weight.bits
        return self._room.keep(pack(weight, self.step.lanes)), 16

    def _keep(self, value: Tensor | None) -> Tensor | None:
        self._kept.append(value)
        return value


class _NativeForward:
    """One model over one cache; for one thread at a time."""

    def __init__(self, model: NativeLlama, cache: KVCache) -> None:
        self._model = model
        self._cache = cache
        self._tokens = 0  # positions that `_work` is for
        self._work: dict[str, Tensor] = {}  # what a step writes between its products
        self._step = _Step()
        self._step.fill(
            layer_numbers=cache.blocks[0].numel(), block=cache.block_size, cache=cache.blocks
        )

    def __call__(self, batch: RaggedBatch, wanted: Tensor) -> Tensor:
        """Logits [len(wanted), vocab] of flat positions `wanted`; stores all keys and values."""
        model, step, tokens = self._model, self._step, len(batch.tokens)
        if tokens > self._tokens:
            self._tokens, self._work = tokens, self._make(tokens)
            step.fill(**self._work)
        logits = torch.empty(len(wanted), model.padded_vocab, dtype=model.dtype)
        step.fill(
            tokens=tokens,
            rows=len(batch.counts),
            wanted=len(wanted),
            table_blocks=batch.tables.shape[1],
            ids=batch.tokens,
            positions=batch.positions,
            row_of=batch.row_of,
            starts=batch.starts,
            counts=batch.counts,
            offsets=batch.offsets,
            tables=batch.tables,
            wanted_tokens=wanted,
            logits=logits,
        )
        model.step.run(ctypes.addressof(model.fields), ctypes.addressof(step))
        return logits[:, : model.config.vocab_size]

    def _make(self, tokens: int) -> dict[str, Tensor]:
        config, dtype = self._model.config, self._model.step.activations
        sizes = {
            "normed": config.hidden_size,
            "qkv": config.query_size + 2 * config.kv_size,
            "mixed": config.query_size,
            "active": config.intermediate_size,
        }
        work = {name: torch.empty(tokens, size, dtype=dtype) for name, size in sizes.items()}
        return work | {"stream": torch.empty(tokens, config.hidden_size)}
