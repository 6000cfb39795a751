"""Random numbers as a pure function of (seed, draw, token), so that no batch changes a draw.

A token is drawn by the Gumbel-max rule: add independent Gumbel noise to each log-probability and
take the largest. Unlike inverting the cumulative distribution, a rounding difference in one
logit cannot shift the boundaries of all other tokens: two runs whose logits differ by 1e-5 agree
on all but about one draw in 100,000.
"""

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import IntArray

_LOW_16, _LOW_17, _LOW_31 = 0xFFFF, 0x1FFFF, 0x7FFFFFFF


def noise_keys(seeds: np.ndarray, draws: IntArray) -> IntArray:
    """Keys [R, 2] of the noise for draw `draws[r]` of `seeds[r]` (uint64)."""
    keys = _mix64(_mix64(seeds) + draws.astype(np.uint64))
    halves: IntArray = keys.view(np.int32).reshape(-1, 2)
    return halves


def gumbel(keys: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise, float32 [R, vocab], for `keys` (int32 [R, 2])."""
    first, second = keys[:, :1], keys[:, 1:]
    bits = torch.arange(vocab, dtype=torch.int32, device=keys.device) ^ first
    # murmur3's 32-bit finaliser (Appleby 2008) with the second half of the key between its rounds;
    # the masks turn torch's arithmetic shifts into logical ones
    bits.bitwise_xor_((bits >> 16).bitwise_and_(_LOW_16)).mul_(-2048144789)
    bits.add_(second)
    bits.bitwise_xor_((bits >> 15).bitwise_and_(_LOW_17)).mul_(-1028477387)
    bits.bitwise_xor_((bits >> 16).bitwise_and_(_LOW_16))
    # -log(-log(1 - v)) with v in (0, 1): relative precision is full at small v, where the large
    # noise that decides a draw comes from
    uniform = bits.bitwise_and_(_LOW_31).float().add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _mix64(values: np.ndarray) -> np.ndarray:
    """SplitMix64 (Steele et al. 2014) of uint64 values."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
