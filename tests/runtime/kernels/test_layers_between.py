"""Norm, residual sum and activation against float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.runtime.kernels import rms_norm_add, silu_mul
from tests.runtime.kernels.paged import assert_close

pytestmark = pytest.mark.kernels
FORMATS = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 5), st.sampled_from([1, 64, 576, 1000, 4096]), FORMATS, st.booleans())
def test_the_residual_grows_and_its_norm_is_written(rows, hidden, dtype, adds):
    draw = torch.Generator().manual_seed(hidden)
    stream = torch.randn(rows, hidden, generator=draw) * 3
    delta = torch.randn(rows, 2 * hidden, generator=draw).to(dtype)[:, :hidden]
    weight = torch.rand(hidden, generator=draw) + 0.5
    before = stream.clone()
    out = torch.full((rows, hidden), math.nan, dtype=dtype)
    rms_norm_add(stream, delta if adds else None, weight, out, 1e-5)
    total = before + delta.float() if adds else before
    assert torch.equal(stream, total)
    exact = total.double()
    exact *= torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-5) * weight
    assert_close(out, exact, dtype)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 5), st.sampled_from([1, 1024, 1025, 1536]), FORMATS)
def test_the_gate_is_applied(rows, size, dtype):
    draw = torch.Generator().manual_seed(size)
    gate_up = (torch.randn(rows, 2 * size, generator=draw) * 4).to(dtype)
    out = torch.full((rows, size), math.nan, dtype=dtype)
    silu_mul(gate_up, out)
    gate, up = gate_up.double().chunk(2, -1)
    assert_close(out, gate * gate.sigmoid() * up, dtype)
