"""How a card's memory is divided, and what is said when it does not suffice."""

from dataclasses import replace

import pytest
import torch

from engine.core.config import KernelConfig
from engine.runtime.gpu.memory import (
    GIB,
    MIB,
    MemoryPlan,
    NotEnoughMemoryError,
    activation_bytes,
    block_bytes,
    plan_memory,
    weight_bytes,
)
from engine.runtime.random_weights import geometry
from engine.runtime.weights import tensor_shape, weight_names

LLAMA = geometry("llama-3-8b")
BF16 = torch.bfloat16
KERNEL = KernelConfig(
    num_blocks=1,
    max_running=256,
    max_step_tokens=8192,
    max_context=8192,
    vocab_size=LLAMA.vocab_size,
)
PARAMETERS = 8_030_261_248  # of meta-llama/Meta-Llama-3-8B


def test_the_geometry_has_the_models_parameters():
    counted = 0
    for name in weight_names(LLAMA):
        size = 1
        for length in tensor_shape(name, LLAMA):
            size *= length
        counted += size
    assert counted == PARAMETERS


def test_weights_are_counted_as_they_lie_on_the_card():
    norms = 65 * 4096
    rotation = 2 * 8192 * 128
    assert weight_bytes(LLAMA, BF16) == 2 * (PARAMETERS - norms) + 4 * (norms + rotation)
    tied = replace(LLAMA, tied_head=True)
    assert weight_bytes(LLAMA, BF16) - weight_bytes(tied, BF16) == 2 * 128256 * 4096


def test_a_block_holds_keys_and_values_of_all_layers():
    assert block_bytes(LLAMA, BF16, 16) == 2 * 32 * 8 * 128 * 16 * 2
    assert block_bytes(LLAMA, torch.float8_e4m3fn, 16) == 2 * 32 * 8 * 128 * 16


def test_activations_follow_the_step_and_the_batch():
    position = 4 * 4096 + 2 * (3 * 4096 + (32 + 16 + 32) * 128 + 3 * 14336)
    row = 128256 * (2 + 32) + 4 * (8192 + 2 * 512)
    assert activation_bytes(LLAMA, BF16, KERNEL) == 8192 * position + 256 * row
    fewer = replace(KERNEL, max_running=64)
    drop = activation_bytes(LLAMA, BF16, KERNEL) - activation_bytes(LLAMA, BF16, fewer)
    assert drop == 192 * row


def test_kv_gets_what_the_rest_leaves():
    plan = plan_memory(LLAMA, BF16, KERNEL, total=140 * GIB, free=139 * GIB)
    assert plan.graphs == 23 * 8 * MIB  # 1, 2, 4, 8, seven to 64, twelve to 256
    assert plan.reserve == round(0.03 * 140 * GIB)
    spent = plan.weights + plan.activations + plan.graphs + plan.reserve
    assert plan.kv == 139 * GIB - spent
    size = block_bytes(LLAMA, BF16, 16)
    assert plan.blocks(size, None, 1 << 40) == plan.kv // size
    assert plan.blocks(size, None, 100) == 100
    assert plan.blocks(size, 10 * size + 1, 1 << 40) == 10


SMALL = MemoryPlan(
    total=24 * GIB, free=20 * GIB, weights=15 * GIB, activations=GIB, graphs=GIB // 4
)


def test_too_little_memory_is_said_in_numbers():
    assert SMALL.kv == int(2.75 * GIB)
    with pytest.raises(NotEnoughMemoryError) as asked:
        SMALL.blocks(MIB, 4 * GIB, 1 << 40)
    assert str(asked.value) == (
        "kernel.kv_memory asks for 4.00 GiB and 2.75 GiB are left for KV: 20.00 GiB free of "
        "24.00 GiB; weights 15.00 GiB, activations 1.00 GiB, graphs 0.25 GiB, reserve 1.00 GiB"
    )
    full = replace(SMALL, free=16 * GIB)
    for wanted in (None, MIB):
        with pytest.raises(NotEnoughMemoryError):
            full.blocks(MIB, wanted, 100)
    with pytest.raises(NotEnoughMemoryError, match=r"does not fit: 1.25 GiB are missing before"):
        full.blocks(MIB, None, 100)
