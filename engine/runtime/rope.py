"""Rotary position embedding (Su et al. 2021, half-split layout) and its frequency scalings."""

import math

import torch
from torch import Tensor

from engine.runtime.model_config import ModelConfig, RopeScaling


def inverse_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Angle per position of each pair (float32 [head_dim / 2]) and the factor on cos and sin."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope
    if scaling.kind == "linear":
        return frequencies / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return frequencies / llama3_divisors(frequencies, scaling), 1.0
    if scaling.kind == "yarn":
        return _yarn(frequencies, config)
    return frequencies, 1.0


def llama3_divisors(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """What Llama 3.1 divides frequencies by: 1 for short waves, `factor` for long, else between."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / scaling.factor + smooth)


def _yarn(frequencies: Tensor, config: ModelConfig) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023): interpolate slow pairs, keep fast ones, ramp linearly between."""
    scaling = config.rope

    def pair_turning(rotations: float) -> float:
        ratio = scaling.original_context / (rotations * 2 * math.pi)
        return config.head_dim * math.log(ratio) / (2 * math.log(config.rope_theta))

    low, high = pair_turning(scaling.beta_fast), pair_turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    pairs = torch.arange(config.head_dim // 2, dtype=torch.float32)
    slow = ((pairs - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
    scaled = frequencies * (slow / scaling.factor + 1.0 - slow)
    factor = scaling.attention_factor
    if factor is None:
        factor = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return scaled, float(factor)


class RotaryTable:
    """cos and sin of every position up to a bound, laid out for one fused rotation.

    With `swap` exchanging the halves of a head, the rotation of x is x * cos + swap(x) * sin when
    the first half of sin carries the minus sign. Both tables are float32 [positions, 1, head_dim].
    """

    def __init__(self, config: ModelConfig, positions: int, device: torch.device) -> None:
        frequencies, factor = inverse_frequencies(config)
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
        cos, sin = angles.cos() * factor, angles.sin() * factor
        self.cos = torch.cat((cos, cos), -1).unsqueeze(1).to(device)
        self.sin = torch.cat((-sin, sin), -1).unsqueeze(1).to(device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Tables for `positions` (int64 [T]): two float32 tensors [T, 1, head_dim]."""
        return self.cos.index_select(0, positions), self.sin.index_select(0, positions)


def rotate_(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate `heads` [T, H, head_dim] in place; computed in float32 whatever their type."""
    exact = heads.float()
    swapped = exact.roll(exact.shape[-1] // 2, -1)
    if exact is heads:
        heads.mul_(cos).addcmul_(swapped, sin)
    else:
        heads.copy_(exact.mul_(cos).addcmul_(swapped, sin))
