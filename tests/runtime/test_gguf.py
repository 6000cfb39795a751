"""GGUF: every tensor type against the block layouts of ggml written out, names, and conversion."""

import json
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from engine.runtime.convert import convert_weights
from engine.runtime.gguf_weights import GgufSource, gguf_name, unpermute_rope_rows
from engine.runtime.loader import build_model, load_model, open_weights
from engine.runtime.model_config import ModelConfig, RopeScaling, UnsupportedModelError
from engine.runtime.rope import inverse_frequencies, llama3_divisors
from engine.runtime.weights import WeightsError, weight_names
from tests.runtime.driver import TINY, RandomWeights
from tests.runtime.test_families import all_logits

CPU = torch.device("cpu")
SHAPE = replace(
    TINY,
    hidden_size=256,
    intermediate_size=256,
    head_dim=64,
    num_layers=1,
    vocab_size=40,
    tied_head=True,
)


def half(raw: bytes) -> float:
    return float(np.frombuffer(raw, np.float16)[0])


def q8_0(block: bytes) -> list[float]:
    return [half(block[:2]) * q for q in np.frombuffer(block[2:], np.int8).tolist()]


def q4_0(block: bytes) -> list[float]:
    d, q = half(block[:2]), block[2:]
    return [d * ((b & 15) - 8) for b in q] + [d * ((b >> 4) - 8) for b in q]


def q4_1(block: bytes) -> list[float]:
    d, m, q = half(block[:2]), half(block[2:4]), block[4:]
    return [d * (b & 15) + m for b in q] + [d * (b >> 4) + m for b in q]


def q4_k(block: bytes) -> list[float]:
    d, dmin, s, q = half(block[:2]), half(block[2:4]), block[4:16], block[16:]
    values = []
    for j in range(8):
        if j < 4:
            scale, low = s[j] & 63, s[j + 4] & 63
        else:
            scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4
            low = (s[j + 4] >> 4) | (s[j] >> 6) << 4
        part = q[j // 2 * 32 : j // 2 * 32 + 32]
        values += [d * scale * (b >> 4 if j % 2 else b & 15) - dmin * low for b in part]
    return values


def q6_k(block: bytes) -> list[float]:
    scales, d = np.frombuffer(block[192:208], np.int8).tolist(), half(block[208:])
    values = [0.0] * 256
    for n in range(2):
        low, high = block[64 * n : 64 * n + 64], block[128 + 32 * n : 160 + 32 * n]
        for i in range(32):
            for k in range(4):
                nibble = low[i + 32 * (k % 2)]
                bits = (nibble >> 4 if k > 1 else nibble & 15) | (high[i] >> 2 * k & 3) << 4
                scale = scales[8 * n + i // 16 + 2 * k]
                values[128 * n + 32 * k + i] = d * scale * (bits - 32)
    return values


def random_blocks(kind: Kind, rows: int, columns: int) -> np.ndarray:
    """Any bytes are a valid block once its half-precision scales are ordinary numbers."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(int(kind))
    raw = rng.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    scales = {Kind.Q4_K: [0, 2], Kind.Q6_K: [208], Kind.Q4_1: [0, 2]}.get(kind, [0])
    for at in scales:
        numbers = rng.uniform(0.001, 0.02, (rows, columns // elements, 1)).astype(np.float16)
        raw[..., at : at + 2] = numbers.view(np.uint8)
    return raw.reshape(rows, -1)


def write_gguf(path, tensors, family="llama", config=SHAPE, leave_out=(), **metadata):
    """`tensors` maps GGUF names to an array, or to (raw blocks, their type)."""
    writer = gguf.GGUFWriter(path, family)
    fields = {
        "block_count": config.num_layers,
        "context_length": config.context_length,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
    }
    for key, value in (fields | metadata).items():
        if key not in leave_out:
            add = writer.add_string if isinstance(value, str) else writer.add_uint32
            add(f"{family}.{key}", value)
    writer.add_float32(f"{family}.attention.layer_norm_rms_epsilon", config.rms_eps)
    writer.add_float32(f"{family}.rope.freq_base", config.rope_theta)
    for name, tensor in tensors.items():
        data, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave_rope_rows(weights: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k of Llama models."""
    halves = weights.reshape(heads, 2, len(weights) // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weights.shape))


def gguf_tensors(source, config, interleaved):
    tensors = {}
    for name in weight_names(config):
        array = source.get(name).numpy()
        for part, heads in (("q_proj", config.num_heads), ("k_proj", config.num_kv_heads)):
            if interleaved and part in name:
                array = interleave_rope_rows(array, heads)
        tensors[gguf_name(name)] = array
    return tensors


@pytest.mark.parametrize("reference", [q8_0, q4_0, q4_1, q4_k, q6_k])
def test_quantised_blocks(reference, tmp_path):
    kind = Kind[reference.__name__.upper()]
    blocks = random_blocks(kind, 3, 512)
    tensors = {"token_embd.weight": (blocks, kind)}
    write_gguf(tmp_path / "m.gguf", tensors)
    actual = GgufSource(tmp_path / "m.gguf").get("model.embed_tokens.weight")
    size = gguf.GGML_QUANT_SIZES[kind][1]
    expected = [
        [value for at in range(0, len(row), size) for value in reference(row[at : at + size])]
        for row in (row.tobytes() for row in blocks)
    ]
    assert actual.shape == (3, 512)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_quantising_and_reading_back_stays_within_a_step(kind, tmp_path):
    weights = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    blocks = gguf.quants.quantize(weights, kind)
    write_gguf(tmp_path / "m.gguf", {"token_embd.weight": (blocks, kind)})
    actual = GgufSource(tmp_path / "m.gguf").get("model.embed_tokens.weight").numpy()
    spread = np.abs(weights).reshape(4, 2, 32).max(-1).repeat(32, -1).reshape(4, 64)
    levels = 254 if kind == Kind.Q8_0 else 15
    assert (np.abs(actual - weights) <= 2.2 * spread / levels).all()


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16])
def test_float_tensors(kind, tmp_path):
    exact = np.array([[1.0, -0.5, 3.25, 0.0]] * 3, np.float32)
    stored = gguf.quants.quantize(exact, kind)
    tensor = (stored, kind) if kind == Kind.BF16 else stored
    write_gguf(tmp_path / "m.gguf", {"token_embd.weight": tensor})
    actual = GgufSource(tmp_path / "m.gguf").get("model.embed_tokens.weight")
    assert actual.dtype == torch.float32
    np.testing.assert_array_equal(actual.numpy(), exact)


def test_rope_rows_are_put_back():
    interleaved = torch.tensor([[0.0], [2.0], [1.0], [3.0], [10.0], [12.0], [11.0], [13.0]])
    expected = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]
    assert unpermute_rope_rows(interleaved, 2).squeeze(1).tolist() == expected
    rows = np.arange(24.0).reshape(12, 2)
    restored = unpermute_rope_rows(torch.tensor(interleave_rope_rows(rows, 3)), 3)
    np.testing.assert_array_equal(restored.numpy(), rows)


@pytest.mark.parametrize(("family", "interleaved"), [("llama", True), ("qwen2", False)])
def test_a_gguf_file_computes_what_its_original_does(family, interleaved, tmp_path):
    names = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
    config = replace(SHAPE, architecture=names[family], qkv_bias=family == "qwen2")
    source = RandomWeights(config)
    if family == "qwen2":
        for name in list(weight_names(config)):
            if name.endswith(".bias"):
                source.tensors[name] = torch.randn(len(source.get(name[:-4] + "weight")))
    path = tmp_path / "m.gguf"
    write_gguf(path, gguf_tensors(source, config, interleaved), family, config)
    model = load_model(path, torch.float32)
    # the file stores its rope base and epsilon in single precision
    eps = float(np.float32(config.rms_eps))
    assert model.config == replace(config, rms_eps=eps, rope=model.config.rope)
    expected = build_model(config, source, torch.float32, CPU)
    ids = list(range(30))
    assert torch.allclose(
        all_logits(model, ids, [30]), all_logits(expected, ids, [30]), rtol=1e-4, atol=1e-5
    )


def test_conversion_gives_a_folder_that_transformers_loads(tmp_path):
    from transformers import LlamaForCausalLM

    source = RandomWeights(SHAPE)
    write_gguf(tmp_path / "m.gguf", gguf_tensors(source, SHAPE, interleaved=True))
    out = tmp_path / "out"
    out.mkdir()
    convert_weights(tmp_path / "m.gguf", out)
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is True
    model = load_model(out, torch.float32)
    assert torch.equal(model.embedding, source.get("model.embed_tokens.weight").bfloat16().float())
    ids = list(range(40))
    with torch.inference_mode():
        reference = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32)
        expected = reference(torch.tensor([ids])).logits[0]
    actual = all_logits(model, ids, [40])
    assert (actual - expected).norm() / expected.norm() < 1e-5


def llama3_file(tmp_path, divisors):
    tensors = gguf_tensors(RandomWeights(SHAPE), SHAPE, interleaved=True)
    write_gguf(tmp_path / "m.gguf", tensors | {"rope_freqs.weight": divisors})
    return tmp_path / "m.gguf"


def test_llama3_scaling_is_recognised_by_its_divisors(tmp_path):
    scaling = RopeScaling("llama3", 32.0, original_context=8192)
    divisors = llama3_divisors(inverse_frequencies(SHAPE)[0], scaling).numpy()
    assert divisors[0] == 1.0
    assert divisors[-1] == pytest.approx(32.0)
    assert GgufSource(llama3_file(tmp_path, divisors)).config.rope == scaling


def test_other_divisors_are_refused(tmp_path):
    divisors = np.linspace(1, 8, SHAPE.head_dim // 2, dtype=np.float32)
    with pytest.raises(UnsupportedModelError, match=r"'rope_freqs\.weight'"):
        GgufSource(llama3_file(tmp_path, divisors))


EMBEDDING = {"token_embd.weight": np.zeros((4, 256), np.float32)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"family": "gpt2"}, "GGUF architecture 'gpt2' is not supported"),
        ({"leave_out": ("block_count",)}, "lacks the metadata key 'llama.block_count'"),
        ({"expert_count": 8}, "mixture-of-experts"),
        ({"attention.value_length": 32}, "'llama.attention.value_length' other than 64"),
        ({"rope.scaling.type": "longrope"}, "RoPE scaling 'longrope' is not supported"),
    ],
)
def test_refusals_name_what_does_not_fit(arguments, message, tmp_path):
    write_gguf(tmp_path / "m.gguf", EMBEDDING, **arguments)
    with pytest.raises(UnsupportedModelError, match=message):
        GgufSource(tmp_path / "m.gguf")


def test_an_unsupported_tensor_type_is_named(tmp_path):
    blocks = gguf.quants.quantize(np.ones((2, 64), np.float32), Kind.Q5_0)
    write_gguf(tmp_path / "m.gguf", {"token_embd.weight": (blocks, Kind.Q5_0)})
    with pytest.raises(UnsupportedModelError, match=r"'token_embd\.weight' has type Q5_0"):
        GgufSource(tmp_path / "m.gguf").get("model.embed_tokens.weight")


def test_damaged_or_incomplete_files_say_so(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"not a model at all, just some text")
    with pytest.raises(WeightsError, match=r"bad\.gguf is not a readable GGUF file"):
        load_model(tmp_path / "bad.gguf", torch.float32)
    write_gguf(tmp_path / "empty.gguf", {})
    with pytest.raises(WeightsError, match=r"has no tensor 'token_embd\.weight'"):
        load_model(tmp_path / "empty.gguf", torch.float32)
    write_gguf(tmp_path / "m.gguf", EMBEDDING)
    with pytest.raises(WeightsError, match=r"has no tensor 'blk\.0\.attn_norm\.weight'"):
        load_model(tmp_path / "m.gguf", torch.float32)


def write_model(path, **arguments):
    """A whole model of SHAPE."""
    write_gguf(path, gguf_tensors(RandomWeights(SHAPE), SHAPE, interleaved=True), **arguments)


def test_a_file_cut_off_anywhere_says_so(tmp_path):
    path = tmp_path / "m.gguf"
    write_model(path)
    whole = path.read_bytes()
    load_model(path, torch.float32)
    for length in (*range(0, 800, 41), len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(WeightsError, match=r"m\.gguf is not a readable GGUF file"):
            load_model(path, torch.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention.head_count_kv": 4}, r"m\.gguf: tensor 'blk\.0\.attn_k\.weight' has shape"),
        (
            {"attention.head_count": 0},
            r"m\.gguf: 'llama\.attention\.head_count' must be a positive",
        ),
    ],
)
def test_metadata_that_belong_to_other_tensors_are_refused(arguments, message, tmp_path):
    write_model(tmp_path / "m.gguf", **arguments)
    with pytest.raises(ValueError, match=message):
        open_weights(tmp_path / "m.gguf")


def test_a_folder_without_weights_says_so(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHAPE.to_hf()))
    assert ModelConfig.from_folder(tmp_path).vocab_size == 40
    with pytest.raises(WeightsError, match=r"holds neither model.safetensors nor"):
        load_model(tmp_path, torch.float32)
    (tmp_path / "model.safetensors").write_bytes(b"12345678garbage")
    with pytest.raises(WeightsError, match=r"cannot read .*model.safetensors"):
        load_model(tmp_path, torch.float32)
