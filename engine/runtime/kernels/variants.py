"""Every kernel in the shapes and number formats that it is launched in, as launches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from engine.runtime.device_check.shapes import HEAD_DIMS, NARROW_HEAD_DIM, TEXT, attention_shape
from engine.runtime.kernels.activation import silu_launch
from engine.runtime.kernels.decode import decode_launches
from engine.runtime.kernels.decode_plan import DecodePlan, plan_launch
from engine.runtime.kernels.kv_write import rope_launch, write_launch
from engine.runtime.kernels.launch import Launch
from engine.runtime.kernels.norm import norm_launch
from engine.runtime.kernels.prefill import prefill_launch
from engine.runtime.kernels.sampling import SampleInputs, SampleScratch, sample_launches
from engine.runtime.kv_cache import NARROW
from engine.runtime.model_config import ModelConfig
from engine.runtime.random_weights import geometry

META = torch.device("meta")
ROWS = 64
BLOCK = 16
FORMATS = (torch.bfloat16, torch.float16)
# Sequences that a decode may have at most, up to the largest `kernel.max_running`: its plan is
# compiled for each power of two.
MOST = tuple(1 << power for power in range(5, 13))


@dataclass(frozen=True, slots=True)
class Geometry:
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocab: int

    @classmethod
    def of(cls, model: ModelConfig) -> Self:
        heads = model.num_heads, model.num_kv_heads, model.head_dim
        return cls(*heads, model.hidden_size, model.intermediate_size, model.vocab_size)


# one for each head size, and groups of 1, 3, 4 and 7 query heads
MODELS = {
    "llama-3-8b": Geometry(32, 8, 128, 4096, 14336, 128256),
    "llama-3.2-1b": Geometry(32, 8, 64, 2048, 8192, 128256),
    "phi-3-mini": Geometry(32, 32, 96, 3072, 8192, 32064),
    "phi-2": Geometry(32, 32, 80, 2560, 10240, 51200),
    "qwen2.5-7b": Geometry(28, 4, 128, 3584, 18944, 152064),
    "smollm2-135m": Geometry(9, 3, 64, 576, 1536, 49152),
}
# what `device_check` launches besides
ATTENTION_CHECKS = {size: f"head size {size}" for size in HEAD_DIMS}
GEOMETRIES = {
    **MODELS,
    **{name: Geometry.of(attention_shape(size)) for size, name in ATTENTION_CHECKS.items()},
    TEXT: Geometry.of(geometry(TEXT)),
}


@dataclass(frozen=True, slots=True)
class Part:
    """Kernels of one of GEOMETRIES with a number format: all, or only attention; with all formats

    of the cache, or only the model's.
    """

    geometry: str
    dtype: torch.dtype
    whole: bool = True
    narrow: bool = True


def parts() -> Iterator[Part]:
    """All that is compiled ahead of time."""
    for name in MODELS:
        for dtype in FORMATS:
            yield Part(name, dtype)
    for size, name in ATTENTION_CHECKS.items():
        for dtype in FORMATS:
            narrow = (size, dtype) == (NARROW_HEAD_DIM, torch.bfloat16)
            yield Part(name, dtype, whole=False, narrow=narrow)
    yield Part(TEXT, torch.float32, narrow=False)


@dataclass(frozen=True, slots=True)
class Variant:
    """`kernel` and `shape` name it in the report."""

    kernel: str
    shape: str
    launch: Launch


def variants(part: Part, card: int) -> Iterator[Variant]:
    """The kernels of `part`, with every format of the cache that compute capability `card` has."""
    shape, dtype = GEOMETRIES[part.geometry], part.dtype
    if part.whole:
        yield from _elementwise(shape, dtype)
        yield from _sampling(shape)
        yield from _planning()
    yield from _attention(shape, dtype, dtype, card)
    for small, first in NARROW.items():
        if part.narrow and card >= first:
            yield from _attention(shape, dtype, small, card)


def _attention(
    shape: Geometry, dtype: torch.dtype, stored: torch.dtype, card: int
) -> Iterator[Variant]:
    heads, kv, dim = shape.heads, shape.kv_heads, shape.head_dim
    name = f"{heads}/{kv} x {dim}, {_name(dtype)}"
    if stored != dtype:
        name += f", cache {_name(stored)}"
    qkv = _empty(ROWS, heads + 2 * kv, dim, dtype=dtype)
    queries, keys, values = qkv[:, :heads], qkv[:, heads : heads + kv], qkv[:, heads + kv :]
    cache = _empty(ROWS, 2 * kv, BLOCK, dim, dtype=stored)
    out = _empty(ROWS, heads, dim, dtype=dtype)
    tables, contexts = _ints(ROWS, 512), _ints(ROWS)
    plan = DecodePlan.allocate(ROWS, heads, kv, dim, META)
    slots, angles = _empty(ROWS, dtype=torch.int64), _empty(ROWS, 1, dim, dtype=torch.float32)
    attend, combine = decode_launches(queries, cache, tables, contexts, contexts, plan, out, 1.0)
    tiles = _ints(ROWS, 4)
    yield Variant("decode", name, attend)
    yield Variant("prefill", name, prefill_launch(queries, cache, tables, tiles, out, 1.0, card))
    yield Variant("rope + write", name, rope_launch(qkv, angles, angles, slots, cache, slots))
    yield Variant("write", name, write_launch(keys, values, cache, slots))
    if stored == dtype:
        yield Variant("combine", name, combine)


def _planning() -> Iterator[Variant]:
    for most in MOST:
        plan = DecodePlan.allocate(most, 1, 1, 1, META)
        yield Variant("plan", f"{most:,} sequences at most", plan_launch(_ints(most), plan))


def _elementwise(shape: Geometry, dtype: torch.dtype) -> Iterator[Variant]:
    stream = _empty(ROWS, shape.hidden, dtype=torch.float32)
    weight = _empty(shape.hidden, dtype=torch.float32)
    out = _empty(ROWS, shape.hidden, dtype=dtype)
    name = f"{shape.hidden}, {_name(dtype)}"
    yield Variant("norm", name, norm_launch(stream, None, weight, out, 1e-5))
    yield Variant("add + norm", name, norm_launch(stream, out, weight, out, 1e-5))
    gate_up = _empty(ROWS, 2 * shape.intermediate, dtype=dtype)
    half = _empty(ROWS, shape.intermediate, dtype=dtype)
    yield Variant("silu * up", f"{shape.intermediate}, {_name(dtype)}", silu_launch(gate_up, half))


def _sampling(shape: Geometry) -> Iterator[Variant]:
    """Scores are in float32, as what changes them leaves them."""
    reals = [_empty(ROWS, dtype=torch.float32) for _ in range(4)]
    inputs = SampleInputs(
        temperature=reals[0],
        top_p=reals[1],
        top_k=_ints(ROWS),
        min_p=reals[2],
        seed=_empty(ROWS, dtype=torch.int64),
        draws=_ints(ROWS),
    )
    scratch = SampleScratch.allocate(ROWS, shape.vocab, META)
    scores = _empty(ROWS, shape.vocab, dtype=torch.float32)
    tokens = _empty(ROWS, dtype=torch.int64)
    launches = sample_launches(scores, inputs, scratch, tokens, reals[3])
    for kernel, launch in zip(("top", "noise", "draw"), launches, strict=True):
        yield Variant(kernel, f"{shape.vocab}, float32", launch)


def _empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def _ints(*shape: int) -> Tensor:
    return _empty(*shape, dtype=torch.int32)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.").replace("float8_", "")
