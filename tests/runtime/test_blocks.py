"""Weights that stay in the blocks of a GGUF file, from its bytes to the logits."""

import json
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import save_file

from engine.runtime.attention import GatherAttention
from engine.runtime.gguf_blocks import read_blocks
from engine.runtime.gguf_weights import GgufSource
from engine.runtime.kv_cache import KVCache
from engine.runtime.loader import build_model, build_native, load_quickest
from engine.runtime.native.library import whole_step_for
from engine.runtime.native.model import pack_blocks
from engine.runtime.ragged import ragged
from engine.runtime.store import ORIGIN
from tests.runtime.driver import TINY, RandomWeights
from tests.runtime.test_gguf import gguf_tensors, random_blocks, write_gguf

CPU = torch.device("cpu")
STEP = whole_step_for(torch.bfloat16)
SMALL = replace(
    TINY, hidden_size=64, intermediate_size=96, head_dim=32, vocab_size=101, tied_head=True
)
PAIRS = STEP is not None and STEP.inputs == 2  # weights are multiplied as bfloat16
needs_step = pytest.mark.skipif(STEP is None, reason="not a processor, or no compiler, for it")


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
def test_blocks_are_what_the_file_means(kind):
    raw = random_blocks(kind, 5, 96)
    blocks = read_blocks(kind.name, torch.tensor(raw))
    assert blocks.bits == (8 if kind == Kind.Q8_0 else 4)
    assert int(blocks.numbers.max()) < 2**blocks.bits
    expected = gguf.quants.dequantize(raw, kind)
    np.testing.assert_allclose(blocks.dequantised(), expected, rtol=1e-6, atol=1e-7)


def test_what_has_no_such_blocks_is_left_to_others():
    assert read_blocks("Q6_K", torch.tensor(random_blocks(Kind.Q6_K, 2, 256))) is None
    raw = random_blocks(Kind.Q8_0, 2, 64)
    raw[1, :2] = np.array([600.0], np.float16).view(np.uint8)  # 128 of these are no float16
    assert read_blocks("Q8_0", torch.tensor(raw)) is None


@pytest.mark.parametrize("kind", [Kind.Q4_1, Kind.Q8_0])
def test_a_block_of_eight_outputs_has_pairs_of_inputs_in_the_halves_of_words(kind):
    blocks = read_blocks(kind.name, torch.tensor(random_blocks(kind, 9, 64)))
    bits, places = blocks.bits, 32 // blocks.bits
    packed = pack_blocks(blocks, lanes=8, inputs=1)
    assert packed.shape == (4, 2, 16 + 16 + bits * 32)  # nine outputs, padded to 32
    block = packed[1, 1].numpy()  # output 8 is alone in its panel; its second block
    assert block[:2].view(np.float16)[0] == blocks.scale[8, 1]
    assert block[16:18].view(np.float16)[0] == blocks.offset[8, 1]
    words = block[32:].view(np.uint32).reshape(bits, 8)
    found = [
        int(words[i // places, 0]) >> 16 * (i % 2) + bits * (i % places // 2) for i in range(32)
    ]
    assert [number % 2**bits for number in found] == blocks.numbers[8, 32:].tolist()
    assert not words[:, 1:].any()


@pytest.mark.parametrize("kind", [Kind.Q4_1, Kind.Q8_0])
def test_a_block_of_sixteen_outputs_has_pairs_of_inputs_side_by_side(kind):
    blocks = read_blocks(kind.name, torch.tensor(random_blocks(kind, 27, 64)))
    bits, places = blocks.bits, 32 // blocks.bits
    packed = pack_blocks(blocks, lanes=16, inputs=2)
    assert packed.shape == (2, 2, 32 + 32 + bits * 64)  # 27 outputs, padded to 32
    block = packed[1, 1].numpy()  # outputs 16 to 26; their second block
    scales, offsets = block[:64].view(np.float16).reshape(2, 16)
    words = block[64:].view(np.uint32).reshape(-1, 2, 16)
    for output, half, lane in ((19, 0, 6), (24, 1, 0), (26, 1, 4)):
        assert scales[lane + half] == blocks.scale[output, 1]
        assert offsets[lane + half] == blocks.offset[output, 1]
        found = [
            int(words[i // 2 // places, half, lane + i % 2]) >> bits * (i // 2 % places)
            for i in range(32)
        ]
        assert [number % 2**bits for number in found] == blocks.numbers[output, 32:].tolist()
    assert not words[:, 1, 6:].any()  # outputs 27 to 31 are none


def quantised(config, kinds):
    """Tensors for `write_gguf`: of the kind that `kinds` has for a part of their name."""
    tensors = gguf_tensors(RandomWeights(config), config, interleaved=True)
    for name, array in tensors.items():
        for part, kind in kinds.items():
            if part in name and "norm" not in name:
                tensors[name] = gguf.quants.quantize(array, kind), kind
    return tensors


@pytest.fixture
def folder(tmp_path):
    """A model folder beside the file that it was made from, four bits and an 8-bit table."""
    kinds = {"blk.": Kind.Q4_1, "token_embd": Kind.Q8_0}
    write_gguf(tmp_path / ORIGIN, quantised(SMALL, kinds), config=SMALL)
    source = GgufSource(tmp_path / ORIGIN)
    (tmp_path / "config.json").write_text(json.dumps(source.config.to_hf()))
    save_file(RandomWeights(SMALL, seed=9).tensors, tmp_path / "model.safetensors")
    return tmp_path


def logits(model, sequences, attention=None):
    """Of every position of as many prompts of 40 tokens and 3 steps of decoding."""
    cache = KVCache(model.config, 4 * sequences, 16, model.dtype, CPU)
    if attention is None:
        cache.blocks.fill_(torch.nan)
    forward = model.bind(cache)
    tables = np.arange(4 * sequences, dtype=np.int32).reshape(sequences, 4)
    tokens = np.random.default_rng(6).integers(0, 101, (30, 64)).astype(np.int32)[:sequences]
    slots, parts = np.arange(sequences), []
    with torch.inference_mode():
        for start, end in ((0, 40), (40, 41), (41, 42), (42, 43)):
            starts = np.full(sequences, start, np.int32)
            counts = np.full(sequences, end - start, np.int32)
            batch = ragged(slots, starts, counts, tokens, tables)
            wanted = torch.arange(len(batch.tokens))
            if attention is None:
                found = forward(batch, wanted)
            else:
                found = model.forward(batch, wanted, attention(model.config, cache))
            parts.append(found.float().view(sequences, end - start, -1))
    return torch.cat(parts, dim=1)


def errors(path):
    """Of the quickest model and of one in bf16 by torch's operators, beside the file's weights."""
    source = GgufSource(path)
    exact = build_model(source.config, source, torch.float32, CPU)
    expected = logits(exact, 12, GatherAttention)
    rounded = build_model(source.config, source, torch.bfloat16, CPU)
    quickest = load_quickest(path, torch.bfloat16)
    found = (logits(quickest, 12), logits(rounded, 12, GatherAttention))
    return [float((each - expected).norm() / expected.norm()) for each in found]


@needs_step
def test_weights_of_a_folder_are_those_of_the_file_beside_it(folder):
    model = load_quickest(folder, torch.bfloat16)
    layer = model._layers[0]
    assert model.fields.head_bits == 8
    assert [layer.qkv_bits, layer.output_bits, layer.gate_up_bits, layer.down_bits] == [4] * 4
    weights = 2 * SMALL.layer_weights, 128 * SMALL.hidden_size  # two layers; 101 words, padded
    assert model.weight_bytes == (weights[0] * 5 // 8, weights[1] * 9 // 8)


@needs_step
@pytest.mark.skipif(PAIRS, reason="weights become bfloat16 here")
def test_logits_are_nearer_to_the_file_than_those_of_bf16_weights(folder):
    found, of_bf16 = errors(folder / ORIGIN)
    assert found < min(0.004, of_bf16 / 2)


def with_norm(path, weight):
    """A file of four bits whose first MLP takes its third input times `weight`."""
    tensors = quantised(SMALL, {"": Kind.Q4_1})
    tensors["blk.0.ffn_norm.weight"][2] = weight
    write_gguf(path, tensors, config=SMALL)
    return path


@needs_step
@pytest.mark.skipif(PAIRS, reason="inputs become bfloat16 here")
def test_inputs_beside_one_far_larger_are_as_exact_as_in_bf16(tmp_path):
    found, of_bf16 = errors(with_norm(tmp_path / "m.gguf", 1000.0))
    assert found < of_bf16


@needs_step
@pytest.mark.parametrize("weight", [np.inf, np.nan])
def test_no_logit_is_made_of_an_input_that_is_no_number(weight, tmp_path):
    source = GgufSource(with_norm(tmp_path / "m.gguf", weight))
    assert logits(build_native(source.config, source, STEP), 2).isnan().all()


class Panels(GgufSource):
    """A file none of whose weights stay in blocks."""

    def blocks(self, name):
        return None


@needs_step
@pytest.mark.skipif(not PAIRS, reason="weights become float32 here")
@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
def test_weights_are_multiplied_as_the_bf16_next_to_them(kind, tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, quantised(SMALL, {"": kind}), config=SMALL)
    kept, panels = (
        build_native(source.config, source, STEP) for source in (GgufSource(path), Panels(path))
    )
    assert kept.fields.head_bits < panels.fields.head_bits == 16
    for sequences in (1, 2, 5, 12):
        assert torch.equal(logits(kept, sequences), logits(panels, sequences))


@needs_step
@pytest.mark.parametrize("blocks", [True, False])
def test_a_sequence_computes_the_same_alone_and_among_others(folder, blocks):
    if not blocks:
        (folder / ORIGIN).unlink()
    model = load_quickest(folder, torch.bfloat16)
    many = logits(model, 30)
    for few in range(1, 13):
        assert torch.equal(logits(model, few), many[:few])


@needs_step
def test_what_is_fused_of_different_kinds_becomes_bf16(tmp_path):
    kinds = {"attn_q": Kind.Q8_0, "attn_k": Kind.Q4_0, "ffn": Kind.Q4_0}
    write_gguf(tmp_path / "m.gguf", quantised(SMALL, kinds), config=SMALL)
    model = load_quickest(tmp_path / "m.gguf", torch.bfloat16)
    layer = model._layers[1]
    assert (layer.qkv_bits, layer.output_bits) == (16, 16)
    assert (layer.gate_up_bits, layer.down_bits, model.fields.head_bits) == (4, 4, 16)
    found, of_bf16 = errors(tmp_path / "m.gguf")
    assert found < of_bf16
