"""The small shapes that are checked beside the model's own: compiled ahead of time with those."""

from dataclasses import replace

from engine.runtime.model_config import ModelConfig
from engine.runtime.random_weights import geometry

HEAD_DIMS = (64, 80, 96, 128)
NARROW_HEAD_DIM = 128  # with an 8-bit cache
TEXT = "tiny"  # whose text is compared, in float32


def one_layer(shape: ModelConfig) -> ModelConfig:
    return replace(shape, num_layers=1)


def attention_shape(head_dim: int) -> ModelConfig:
    """One layer on which attention is compared with float64: of few heads, for the CPU's sake."""
    shape = replace(one_layer(geometry("llama-3-8b")), context_length=4096)
    return replace(shape, num_heads=8, num_kv_heads=2, head_dim=head_dim)
