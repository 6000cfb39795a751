"""Weights from files and from nowhere, read by one thread or by several."""

import json
import resource
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.runtime.executor import TorchExecutor
from engine.runtime.loader import build_model, open_weights
from engine.runtime.model_config import HF_FAMILIES
from engine.runtime.random_weights import RandomWeights, geometry
from engine.runtime.weights import SafetensorsSource, WeightsError, tensor_shape, weight_names
from tests.runtime.driver import TINY, Row, join, plan, run, tiny_config

CPU = torch.device("cpu")
SHAPE = replace(TINY, num_layers=5, qkv_bias=True, output_bias=True)
SHARDS = ("a.safetensors", "b.safetensors")


def logits_of(model):
    """What a model says, as the text that it draws from three prompts."""
    executor = TorchExecutor(model, tiny_config())
    prompts = ([1, 2, 3], [50] * 9, [96, 0, 17, 4])
    joins = tuple(join(i, prompt, [i]) for i, prompt in enumerate(prompts))
    rows = [Row(i, 0, len(prompt)) for i, prompt in enumerate(prompts)]
    tokens = [run(executor, plan(rows, joined=joins)).tokens.tolist()]
    for step in range(5):
        rows = [Row(i, len(prompt) + step, 1) for i, prompt in enumerate(prompts)]
        tokens.append(run(executor, plan(rows)).tokens.tolist())
    return tokens


@pytest.fixture
def folder(tmp_path):
    """A model in two shards."""
    source = RandomWeights(SHAPE, torch.float32, CPU, seed=3)
    tensors = {name: source.get(name) for name in weight_names(SHAPE)}
    names = list(tensors)
    shards = dict(zip(SHARDS, (names[::2], names[1::2]), strict=True))
    for file, some in shards.items():
        save_file({name: tensors[name] for name in some}, tmp_path / file)
    mapping = {name: file for file, some in shards.items() for name in some}
    index = {"weight_map": mapping}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_why_a_file_cannot_be_opened_is_told(folder):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    source = SafetensorsSource(folder, CPU)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # root may open whatever is there
    try:
        with pytest.raises(WeightsError, match=r"cannot read .*\.safetensors: Too many open files"):
            source.get("model.embed_tokens.weight")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_what_is_wrong_with_the_files_is_told_before_any_is_read(folder):
    (folder / "config.json").write_text(json.dumps(SHAPE.to_hf()))
    index, norm = folder / "model.safetensors.index.json", "model.norm.weight"
    said, files = index.read_text(), {name: (folder / name).read_bytes() for name in SHARDS}
    mapping = json.loads(said)["weight_map"]
    home, other = mapping[norm], next(name for name in SHARDS if name != mapping[norm])

    def refused(message):
        with pytest.raises(WeightsError, match=message):
            open_weights(folder)
        index.write_text(said)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        open_weights(folder)

    def stored_as(tensor):
        tensors = load_file(folder / home) | {norm: tensor}
        save_file(tensors, folder / home)

    for content in ("", "[]", "{}", '{"weight_map": [3]}', '{"weight_map": {"a": 3}}'):
        index.write_text(content)
        refused(r"model\.safetensors\.index\.json must hold a JSON object whose weight_map names")
    index.write_text(json.dumps({"weight_map": mapping | {norm: other}}))
    refused(rf"{other} has no tensor 'model\.norm\.weight', where the index has it")
    del mapping[norm]
    index.write_text(json.dumps({"weight_map": mapping}))
    refused(r"has no tensor 'model\.norm\.weight'")
    (folder / other).unlink()
    refused(rf"cannot read .*{other}: No such file")
    (folder / home).write_bytes(files[home][:-1])
    refused(rf"cannot read .*{home}: ")
    stored_as(torch.ones(3))
    refused(rf"{home}: tensor 'model\.norm\.weight' has shape \(3,\), configured is \(32,\)")
    stored_as(torch.ones(32, dtype=torch.int8))
    refused(rf"{home}: tensor 'model\.norm\.weight' has format I8, which is not supported")
    stored_as(torch.ones(32).to(torch.float8_e4m3fn))
    refused(rf"{home}: tensor 'model\.norm\.weight' has format F8_E4M3, which is not supported")


def test_several_readers_build_the_model_that_one_builds(folder):
    source = SafetensorsSource(folder, CPU)
    one = build_model(SHAPE, source, torch.float32, CPU)
    several = build_model(SHAPE, source, torch.float32, CPU, readers=4)
    in_memory = build_model(SHAPE, RandomWeights(SHAPE, torch.float32, CPU, 3), torch.float32, CPU)
    said = logits_of(one)
    assert logits_of(several) == logits_of(in_memory) == said
    assert torch.equal(one.layers[4].attention_norm, several.layers[4].attention_norm)
    other = build_model(SHAPE, RandomWeights(SHAPE, torch.float32, CPU, 4), torch.float32, CPU)
    assert logits_of(other) != said


def test_a_reader_that_fails_is_heard(folder):
    wrong = replace(SHAPE, intermediate_size=50)
    with pytest.raises(WeightsError, match=r"gate_proj.weight' has shape .*, configured is"):
        build_model(wrong, SafetensorsSource(folder), torch.float32, CPU, readers=4)


@pytest.mark.parametrize("family", HF_FAMILIES)
def test_every_family_has_a_shape_for_each_of_its_tensors(family):
    qkv_bias, qk_norm = HF_FAMILIES[family]
    shape = replace(TINY, architecture=family, qkv_bias=qkv_bias, qk_norm=qk_norm, mlp_bias=True)
    source = RandomWeights(shape, torch.float32, CPU)
    model = build_model(shape, source, torch.float32, CPU)
    assert len(model.layers) == shape.num_layers
    if qkv_bias:
        assert tensor_shape("model.layers.0.self_attn.k_proj.bias", shape) == (shape.kv_size,)


def test_random_tensors_depend_on_seed_and_name_alone():
    def tensor(name, seed=0):
        return RandomWeights(SHAPE, torch.float32, CPU, seed).get(name)

    q, k = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"
    assert torch.equal(tensor(q), tensor(q))
    assert not torch.equal(tensor(q)[: SHAPE.kv_size], tensor(k))
    assert not torch.equal(tensor(q), tensor(q, seed=1))
    assert 0.015 < tensor(q).std() < 0.025


def test_an_unknown_geometry_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"'llama-4'.* llama-3-8b, llama-3-70b, tiny"):
        geometry("llama-4")
