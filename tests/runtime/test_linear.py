"""Matrix products on a card; what a CPU's make of a weight is seen in what models say."""

from types import SimpleNamespace

import pytest
import torch

from engine.runtime.linear import make_linear

PRODUCTS = torch.backends.cuda.matmul


@pytest.fixture
def torch_default():
    PRODUCTS.allow_bf16_reduced_precision_reduction = True
    PRODUCTS.allow_fp16_reduced_precision_reduction = True
    yield
    PRODUCTS.allow_bf16_reduced_precision_reduction = True
    PRODUCTS.allow_fp16_reduced_precision_reduction = True


@pytest.mark.usefixtures("torch_default")
def test_parts_of_a_sum_are_added_in_float32_on_a_card():
    """cuBLAS splits the sums of small batches, and torch allows it to add the parts in 16 bits."""
    make_linear(SimpleNamespace(device=torch.device("cuda")))  # a weight that nobody multiplies
    assert not PRODUCTS.allow_bf16_reduced_precision_reduction
    assert not PRODUCTS.allow_fp16_reduced_precision_reduction
    assert not PRODUCTS.allow_tf32  # of fp32 too
