"""Every kernel in the shapes and number formats that it is meant for, as launches."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.runtime.kernels.activation import silu_launch
from engine.runtime.kernels.decode import decode_launches
from engine.runtime.kernels.decode_plan import DecodePlan, plan_launch
from engine.runtime.kernels.kv_write import rope_launch, write_launch
from engine.runtime.kernels.launch import Launch
from engine.runtime.kernels.norm import norm_launch
from engine.runtime.kernels.prefill import prefill_launch
from engine.runtime.kernels.sampling import SampleInputs, SampleScratch, sample_launches

META = torch.device("meta")
ROWS = 64
BLOCK = 16
FORMATS = (torch.bfloat16, torch.float16)
# 8-bit formats of the cache, with the first compute capability that converts them
SMALL_FORMATS = {torch.float8_e5m2: 80, torch.float8_e4m3fn: 89}


@dataclass(frozen=True, slots=True)
class Geometry:
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocab: int


# one for each head size, and groups of 1, 3, 4 and 7 query heads
GEOMETRIES = {
    "llama-3-8b": Geometry(32, 8, 128, 4096, 14336, 128256),
    "llama-3.2-1b": Geometry(32, 8, 64, 2048, 8192, 128256),
    "phi-3-mini": Geometry(32, 32, 96, 3072, 8192, 32064),
    "phi-2": Geometry(32, 32, 80, 2560, 10240, 51200),
    "qwen2.5-7b": Geometry(28, 4, 128, 3584, 18944, 152064),
    "smollm2-135m": Geometry(9, 3, 64, 576, 1536, 49152),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """`kernel` and `shape` name it in the report."""

    kernel: str
    shape: str
    launch: Launch


def variants(card: int, geometry: str, dtype: torch.dtype) -> Iterator[Variant]:
    """All kernels of one model in one number format, with every format of the cache."""
    shape = GEOMETRIES[geometry]
    yield from _elementwise(shape, dtype)
    yield from _sampling(shape, dtype)
    yield from _sampling(shape, torch.float32)  # logits that penalties or biases changed
    yield from attention_variants(card, geometry, dtype)


def attention_variants(card: int, geometry: str, dtype: torch.dtype) -> Iterator[Variant]:
    """Those that read or write the cache."""
    shape = GEOMETRIES[geometry]
    yield from _attention(shape, dtype, dtype, card)
    for small, first in SMALL_FORMATS.items():
        if card >= first:
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
        yield Variant("plan", f"{ROWS} sequences", plan_launch(contexts, plan))


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


def _sampling(shape: Geometry, dtype: torch.dtype) -> Iterator[Variant]:
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
    logits, tokens = _empty(ROWS, shape.vocab, dtype=dtype), _empty(ROWS, dtype=torch.int64)
    launches = sample_launches(logits, inputs, scratch, tokens, reals[3])
    for kernel, launch in zip(("top", "noise", "draw"), launches, strict=True):
        yield Variant(kernel, f"{shape.vocab}, {_name(dtype)}", launch)


def _empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def _ints(*shape: int) -> Tensor:
    return _empty(*shape, dtype=torch.int32)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.").replace("float8_", "")
