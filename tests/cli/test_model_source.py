"""How many KV blocks a model gets, and what names a revision of its files."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.runtime.model_config import ModelConfig, RopeScaling
from engine.runtime.native.library import whole_step_for
from gateway import model_source
from gateway.config import KernelSettings
from gateway.config_model import ModelSettings
from gateway.model_source import ModelSource, ModelSourceError, available_memory, kernel_config

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    context_length=8192,
    rms_eps=1e-5,
    rope_theta=1e5,
    rope=RopeScaling(),
    tied_head=True,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
)
BLOCK_BYTES = 2 * 30 * 3 * 64 * 64 * 2  # keys and values, layers, heads, head_dim, tokens, bf16


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    return ModelSource(tmp_path, CONFIG, torch.bfloat16, torch.bfloat16, torch.device("cpu"), "r")


def test_configured_memory_is_used_to_the_block(source: ModelSource) -> None:
    kernel = kernel_config(source, KernelSettings(kv_memory=10 * BLOCK_BYTES + 1))
    assert (kernel.num_blocks, kernel.vocab_size, kernel.max_context) == (10, 49152, 8192)
    fp32 = replace(source, dtype=torch.float32, kv_dtype=torch.float32)
    assert kernel_config(fp32, KernelSettings(kv_memory=10 * BLOCK_BYTES)).num_blocks == 5


def test_a_quarter_of_the_memory_and_at_most_1_gib(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    available = 1000 + 40 * BLOCK_BYTES  # the weights come out of it first
    monkeypatch.setattr(model_source, "available_memory", lambda: available)
    assert kernel_config(source, KernelSettings()).num_blocks == 10
    available = 1 << 40
    assert kernel_config(source, KernelSettings()).num_blocks == (1 << 30) // BLOCK_BYTES
    available = 0
    assert kernel_config(source, KernelSettings()).num_blocks == 1


def test_no_more_than_can_be_used(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_source, "available_memory", lambda: 1 << 40)
    few = KernelSettings(max_running=2, max_context=100)
    assert kernel_config(source, few).num_blocks == 2 * 2  # 100 tokens take 2 blocks of 64


def test_blocks_are_large_on_a_cpu_unless_a_size_is_set(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (7 << 30, 8 << 30))
    on_card = replace(source, device=torch.device("cuda"))
    unset, own = KernelSettings(host_memory=0), KernelSettings(host_memory=0, block_size=32)
    assert kernel_config(source, unset).block_size == 64
    assert kernel_config(on_card, unset).block_size == 16
    assert kernel_config(source, own).block_size == kernel_config(on_card, own).block_size == 32


def test_a_card_keeps_two_steps_in_flight_and_gives_kv_what_is_left(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_card = replace(source, device=torch.device("cuda"))
    gib = 1 << 30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (7 * gib, 8 * gib))
    monkeypatch.setattr(model_source, "_move_time", lambda *_sizes: 25_000.0)
    settings = KernelSettings()
    kernel = kernel_config(on_card, settings)
    assert (kernel.max_in_flight, kernel.host_overlap) == (2, True)
    assert kernel.host_block_ns == 25_000.0
    assert kernel_config(on_card, KernelSettings(host_memory=0)).host_block_ns == 0
    assert 0 < kernel.num_blocks < 6 * gib // (BLOCK_BYTES // 4)  # a GiB is kept in reserve
    assert kernel_config(source, settings).max_in_flight == 1
    halves = kernel_config(on_card, settings, engines=2).num_blocks
    assert halves < kernel.num_blocks // 2
    with pytest.raises(ModelSourceError, match=r"kv_memory asks for 7\.00 GiB and 5\.55 GiB"):
        kernel_config(on_card, settings.model_copy(update={"kv_memory": 7 * gib}))


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_an_8_bit_cache_holds_twice_as_many_blocks(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (7 << 30, 8 << 30))
    monkeypatch.setattr(model_source, "_move_time", lambda *_sizes: 1.0)
    wide = replace(source, device=torch.device(place))
    settings = KernelSettings(
        block_size=64, kv_memory=10 * BLOCK_BYTES, host_memory=6 * BLOCK_BYTES
    )
    for form in (torch.float8_e4m3fn, torch.float8_e5m2):
        kernel = kernel_config(replace(wide, kv_dtype=form), settings)
        assert (kernel.num_blocks, kernel.host_blocks) == (20, 12)
    kernel = kernel_config(wide, settings)
    assert (kernel.num_blocks, kernel.host_blocks) == (10, 6)


def test_auto_takes_bf16_where_a_whole_step_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)  # no instructions of its own for it
    cpu, built = torch.device("cpu"), whole_step_for(torch.bfloat16) is not None
    usual = model_source.model_dtype("auto", cpu, CONFIG)
    assert usual == (torch.bfloat16 if built else torch.float32)
    assert model_source.model_dtype("auto", cpu, replace(CONFIG, head_dim=48)) == torch.float32
    assert model_source.model_dtype("auto", torch.device("cuda"), CONFIG) == torch.bfloat16


def test_a_number_format_that_the_device_lacks_is_refused(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, card, config = torch.device("cpu"), torch.device("cuda"), source.config
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA A100")
    with pytest.raises(ModelSourceError, match=r"model\.dtype is fp16, which .* on a GPU only"):
        model_source.model_dtype("fp16", cpu, config)
    assert model_source.model_dtype("fp16", card, config) == torch.float16
    with pytest.raises(ModelSourceError, match=r"model\.kv_dtype is fp8_e5m2, which needs a GPU"):
        model_source.cache_dtype("fp8_e5m2", torch.float32, cpu)
    with pytest.raises(ModelSourceError, match="NVIDIA A100 has less; take fp8_e5m2"):
        model_source.cache_dtype("fp8", torch.float16, card)
    assert model_source.cache_dtype("fp8_e5m2", torch.float16, card) == torch.float8_e5m2
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    assert model_source.cache_dtype("fp8", torch.float16, card) == torch.float8_e4m3fn
    assert model_source.cache_dtype("auto", torch.float16, card) == torch.float16


def test_available_memory_is_a_part_of_the_machine() -> None:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < available_memory() < physical


def test_a_revision_follows_the_files(source: ModelSource) -> None:
    folder = source.path
    first = model_source._revision(folder, "fp32")
    assert first == model_source._revision(folder, "fp32")
    assert first != model_source._revision(folder, "bf16")
    (folder / "model.safetensors").write_bytes(b"x" * 1001)
    assert first != model_source._revision(folder, "fp32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_without_a_device_is_refused(source: ModelSource) -> None:
    (source.path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ModelSourceError, match="finds no CUDA device"):
        model_source.find_model(ModelSettings(source=str(source.path), device="cuda"))
