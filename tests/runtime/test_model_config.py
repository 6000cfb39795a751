import json

import pytest

from engine.runtime.model_config import ModelConfig, RopeScaling, UnsupportedModelError
from engine.runtime.rope import inverse_frequencies

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e5,
}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"]}


def test_fields_are_read():
    config = ModelConfig.from_hf(LLAMA)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (3, 8, 2)
    assert (config.head_dim, config.query_size, config.kv_size) == (8, 64, 16)
    assert (config.rope_theta, config.rope) == (1e5, RopeScaling(original_context=512))
    assert not (config.tied_head)
    assert not (config.qkv_bias)
    assert not (config.output_bias)
    assert not (config.qk_norm)


def test_families_differ_in_bias_and_norm():
    qwen2 = ModelConfig.from_hf(LLAMA | {"architectures": ["Qwen2ForCausalLM"]})
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = ModelConfig.from_hf(QWEN3)
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 32)
    biased = ModelConfig.from_hf(LLAMA | {"attention_bias": True})
    assert (biased.qkv_bias, biased.output_bias) == (True, True)


def test_rope_parameters_of_transformers_5():
    parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": 777.0}
    raw = {k: v for k, v in LLAMA.items() if k != "rope_theta"} | {"rope_parameters": parameters}
    config = ModelConfig.from_hf(raw)
    assert config.rope_theta == 777.0
    assert (config.rope.kind, config.rope.factor) == ("linear", 4.0)
    frequencies, factor = inverse_frequencies(config)
    assert frequencies[1].item() == pytest.approx(777.0**-0.25 / 4)
    assert factor == 1.0


def test_a_sliding_window_bounds_the_context():
    assert ModelConfig.from_hf(MISTRAL | {"sliding_window": 128}).context_length == 128
    assert ModelConfig.from_hf(MISTRAL | {"sliding_window": None}).context_length == 512
    with pytest.raises(UnsupportedModelError, match="'sliding_window' must be a positive integer"):
        ModelConfig.from_hf(MISTRAL | {"sliding_window": "128"})
    unused = QWEN3 | {"sliding_window": 128, "use_sliding_window": False}
    assert ModelConfig.from_hf(unused).context_length == 512
    assert ModelConfig.from_hf(unused | {"use_sliding_window": True}).context_length == 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture 'GPT2LMHeadModel'"),
        ({"architectures": None}, "architecture 'none'"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "RoPE scaling 'dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "RoPE scaling 'longrope'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"vocab_size": "many"}, "'vocab_size' must be a positive integer, not 'many'"),
        ({"num_hidden_layers": None}, "'num_hidden_layers' must be a positive integer"),
        ({"num_key_value_heads": 3}, "8 attention heads cannot share 3 KV heads"),
        ({"architectures": 3}, "architecture 'none'"),
        ({"architectures": "LlamaForCausalLM"}, "architecture 'none'"),
        ({"num_key_value_heads": "2"}, "'num_key_value_heads' must be a positive integer, not '2'"),
        ({"num_hidden_layers": True}, "'num_hidden_layers' must be a positive integer"),
        ({"head_dim": -2}, "'head_dim' must be a positive integer, not -2"),
        ({"num_attention_heads": 128}, "'head_dim' must be a positive integer, not 0"),
        ({"max_position_embeddings": 0}, "'max_position_embeddings' must be a positive integer"),
        ({"rms_norm_eps": "1e-5"}, "'rms_norm_eps' must be a positive number, not '1e-5'"),
        ({"rope_theta": -5}, "'rope_theta' must be a positive number, not -5"),
        ({"tie_word_embeddings": "false"}, "'tie_word_embeddings' must be true or false"),
        ({"rope_scaling": "yarn"}, "RoPE scaling must be an object, not 'yarn'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "'factor' must be a positive number, not None"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "'factor' must be a positive number"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0}},
            "needs a low_freq_factor below its high_freq_factor, not 4.0 and 4.0",
        ),
    ],
)
def test_refusals_name_what_does_not_fit(changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        ModelConfig.from_hf(LLAMA | changes)


def test_unreadable_folders_say_why(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"cannot read .*config.json: No such file"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{oops")
    with pytest.raises(UnsupportedModelError, match="is not valid JSON"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(UnsupportedModelError, match=r"config\.json is not valid JSON"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UnsupportedModelError, match=r"config\.json must hold a JSON object"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"vocab_size": 0}))
    with pytest.raises(UnsupportedModelError, match=r"config\.json: 'vocab_size' must be"):
        ModelConfig.from_folder(tmp_path)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "beta_fast": 16.0},
    ],
)
@pytest.mark.parametrize("base", [LLAMA, QWEN3, MISTRAL], ids=["llama", "qwen3", "mistral"])
def test_a_written_configuration_reads_back(base, scaling, tmp_path):
    config = ModelConfig.from_hf(base | {"rope_scaling": scaling, "tie_word_embeddings": True})
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
    again = ModelConfig.from_folder(tmp_path)
    if scaling["rope_type"] == "linear":
        assert again.rope.factor == config.rope.factor
    else:
        assert again == config
