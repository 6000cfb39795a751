"""Triton kernels for CUDA cards: what `engine.runtime` launches there in place of plain torch.

Importing this package needs triton, so its users import it where they have found a card. Every
entry point takes its outputs, launches on the current stream, and waits for nothing; grids do not
depend on what is in device memory, so a CUDA graph can hold them.
"""

from engine.runtime.kernels.activation import silu_mul
from engine.runtime.kernels.decode import paged_decode_attention
from engine.runtime.kernels.decode_plan import DecodePlan, plan_decode
from engine.runtime.kernels.kv_write import rope_write_kv, write_kv
from engine.runtime.kernels.norm import rms_norm_add
from engine.runtime.kernels.prefill import prefill_tiles, ragged_prefill_attention
from engine.runtime.kernels.sampling import SampleInputs, SampleScratch, sample

__all__ = [
    "DecodePlan",
    "SampleInputs",
    "SampleScratch",
    "paged_decode_attention",
    "plan_decode",
    "prefill_tiles",
    "ragged_prefill_attention",
    "rms_norm_add",
    "rope_write_kv",
    "sample",
    "silu_mul",
    "write_kv",
]
