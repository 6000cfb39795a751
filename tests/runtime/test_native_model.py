"""The whole step in C++ against the same model in float32 and in torch's operators."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.runtime.attention import GatherAttention
from engine.runtime.kv_cache import KVCache
from engine.runtime.loader import build_model, build_native, load_quickest
from engine.runtime.model import LlamaModel
from engine.runtime.native.library import whole_step_for
from engine.runtime.native.model import NativeLlama, alternate, pack
from engine.runtime.ragged import ragged
from tests.runtime.driver import TINY, RandomWeights

CPU = torch.device("cpu")
STEP = whole_step_for(torch.bfloat16)
SMALL = replace(TINY, hidden_size=64, intermediate_size=96, head_dim=32, vocab_size=101)
SHAPES = {
    "llama": SMALL,
    "tied": replace(SMALL, tied_head=True),
    "three queries a head of 64": replace(SMALL, num_heads=6, head_dim=64),
    "one query a head of 128": replace(SMALL, num_heads=2, head_dim=128),
    "qwen2": replace(SMALL, head_dim=64, qkv_bias=True, tied_head=True),
    "qwen3": replace(SMALL, head_dim=64, qk_norm=True),
    "all biases": replace(SMALL, qkv_bias=True, output_bias=True, mlp_bias=True),
}
# (start, end) by sequence, step after step: prompts whole and in parts, decoding beside them, and
# many that decode, so that their heads are read together
STEPS = [
    [(0, 1), (0, 50), (0, 200), *[(0, 17)] * 7],
    [(1, 2), (50, 51), (200, 201), *[(17, 18)] * 7],
    [(2, 131), (51, 52), (201, 204), *[(18, 19)] * 7],
    [(131, 132), (52, 66), (204, 205), *[(19, 20)] * 7],
]

pytestmark = pytest.mark.skipif(STEP is None, reason="not a processor, or no compiler, for it")


class Exact(RandomWeights):
    """Weights that bfloat16 holds exactly: what is left is the error of computing with it."""

    def get(self, name):
        tensor = self.tensors[name]
        return tensor if "norm" in name else tensor.bfloat16().float()


def logits(model, block_size=16, attention=None):
    """Of every position of STEPS; poison in everything that is nobody's."""
    blocks = -(-256 // block_size)
    cache = KVCache(model.config, 10 * blocks, block_size, model.dtype, CPU)
    if attention is None:
        cache.blocks.fill_(torch.nan)
    forward = model.bind(cache)
    tables = np.random.default_rng(5).permutation(10 * blocks).astype(np.int32).reshape(10, -1)
    tokens = (
        np.random.default_rng(6).integers(0, model.config.vocab_size, (10, 256)).astype(np.int32)
    )
    slots, parts = np.arange(10), []
    with torch.inference_mode():
        for step in STEPS:
            starts, ends = np.array(step, np.int32).T
            batch = ragged(slots, starts, ends - starts, tokens, tables)
            every = torch.arange(len(batch.tokens))
            if attention is None:
                parts.append(forward(batch, every).float())
            else:
                parts.append(model.forward(batch, every, attention(model.config, cache)).float())
    return torch.cat(parts)


def error(actual, expected):
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_as_close_as_torchs(name):
    config = SHAPES[name]
    native = build_native(config, Exact(config), STEP)
    plain = build_model(config, Exact(config), torch.bfloat16, CPU)
    exact = build_model(config, Exact(config), torch.float32, CPU)
    expected = logits(exact, attention=GatherAttention)
    allowed = max(1.2 * error(logits(plain, attention=GatherAttention), expected), 0.004)
    assert error(logits(native), expected) <= allowed
    assert error(logits(native, block_size=10), expected) <= allowed


def test_two_threads_compute_the_same():
    config = SHAPES["three queries a head of 64"]
    model = build_native(config, Exact(config), STEP)
    alone = logits(model)
    torch.set_num_threads(2)
    assert torch.equal(logits(model), alone)


def test_blocks_of_whole_sixteens_compute_the_same():
    config = SHAPES["three queries a head of 64"]
    model = build_native(config, Exact(config), STEP)
    expected = logits(model)
    assert torch.equal(logits(model, block_size=64), expected)
    assert torch.equal(logits(model, block_size=48), expected)


def test_panels_hold_pairs_of_sixteen_outputs():
    weight = torch.arange(33 * 4).view(33, 4)
    panels = pack(weight, lanes=16)
    assert panels.shape == (4, 2, 16, 2)
    assert panels[1, 1, 3].tolist() == weight[19, 2:].tolist()
    assert panels[2, 0, 0].tolist() == weight[32, :2].tolist()
    assert not panels[2, :, 1:].any()
    assert not panels[3].any()
    narrow = pack(weight, lanes=8)
    assert narrow.shape == (8, 2, 8, 2)
    assert narrow[2, 1, 3].tolist() == weight[19, 2:].tolist()


def test_gate_and_up_take_turns():
    assert alternate(torch.arange(64), 16).view(4, 16)[:, 0].tolist() == [0, 32, 16, 48]
    assert alternate(torch.arange(32), 8).view(4, 8)[:, 0].tolist() == [0, 16, 8, 24]


def test_sizes_that_fill_no_panels_go_to_torch(tmp_path):
    odd = replace(SMALL, head_dim=16)
    for config, kind in ((SMALL, NativeLlama), (odd, LlamaModel)):
        folder = tmp_path / kind.__name__
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config.to_hf()))
        save_file(Exact(config).tensors, folder / "model.safetensors")
        assert isinstance(load_quickest(folder, torch.bfloat16), kind)
        assert isinstance(load_quickest(folder, torch.float32), LlamaModel)
