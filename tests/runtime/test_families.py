"""Tiny random models of every family and RoPE scaling, against Hugging Face transformers."""

import numpy as np
import pytest
import torch

from engine.runtime.attention import GatherAttention
from engine.runtime.kv_cache import KVCache
from engine.runtime.loader import load_model
from engine.runtime.ragged import ragged

SHAPE = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 5000.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
FAMILIES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama-biased": ("LlamaConfig", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ),
    "llama3": ("LlamaConfig", "LlamaForCausalLM", {"rope_scaling": LLAMA3}),
    "llama-yarn": ("LlamaConfig", "LlamaForCausalLM", {"rope_scaling": YARN}),
    "llama-mha": ("LlamaConfig", "LlamaForCausalLM", {"num_key_value_heads": 6}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"head_dim": 16, "sliding_window": None}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 16, "tie_word_embeddings": True}),
}


def save_reference(name, folder, **save):
    import transformers

    config_name, model_name, extra = FAMILIES[name]
    torch.manual_seed(7)
    config = getattr(transformers, config_name)(**(SHAPE | extra))
    reference = getattr(transformers, model_name)(config).float().eval()
    with torch.no_grad():
        for parameter_name, parameter in reference.named_parameters():
            # biases start at 0 and norms at 1, which would hide that they are misplaced
            if "bias" in parameter_name or "norm" in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    reference.save_pretrained(folder, **save)
    return reference


def all_logits(model, ids, splits):
    """Logits of every position of one sequence, computed in chunks ending at `splits`."""
    cache = KVCache(model.config, 32, 16, model.dtype, model.device)
    backend = GatherAttention(model.config, cache)
    table = np.random.default_rng(3).permutation(32).astype(np.int32)[None]
    tokens, slot = np.array([ids], np.int32), np.zeros(1, np.int64)
    parts, start = [], 0
    with torch.inference_mode():
        for end in splits:
            begin, count = np.array([start], np.int32), np.array([end - start], np.int32)
            batch = ragged(slot, begin, count, tokens, table)
            parts.append(model.forward(batch, torch.arange(end - start), backend))
            start = end
    return torch.cat(parts)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_match_transformers(name, tmp_path):
    reference = save_reference(name, tmp_path)
    ids = np.random.default_rng(1).integers(0, SHAPE["vocab_size"], 90).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    model = load_model(tmp_path, torch.float32)
    actual = all_logits(model, ids, [1, 20, 21, 64, 90])
    assert (actual - expected).norm() / expected.norm() < 1e-5


def test_sharded_folder_reads_like_a_single_file(tmp_path):
    save_reference("qwen2", tmp_path / "single")
    save_reference("qwen2", tmp_path / "sharded", max_shard_size="40KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    ids = list(range(40))
    single, sharded = (
        all_logits(load_model(tmp_path / kind, torch.float32), ids, [40])
        for kind in ("single", "sharded")
    )
    assert torch.equal(single, sharded)
