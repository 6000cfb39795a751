"""The engine beside its machine's limits; on a tiny random model where it takes an engine."""

from dataclasses import replace

import pytest
import torch

from engine.core.config import KernelConfig
from engine.runtime.loader import build_model
from engine.sim.profile import StepShape
from loadgen import engine_bench, machine
from loadgen.engine_bench import EngineSpeed, Mixed, Pace, findings
from loadgen.live import LiveError, LiveModel
from loadgen.machine import Machine, Roofline
from tests.runtime.driver import TINY, RandomWeights, tiny_config, tiny_model


def test_the_least_time_of_a_step_is_its_arithmetic_or_its_memory():
    """By hand: 2 layers of 8 numbers, 2 heads of 4 over 1 KV head, 16 in the MLP, 10 words."""
    config = replace(
        *(TINY,),
        hidden_size=8,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        intermediate_size=16,
        vocab_size=10,
    )
    layer = 8 * (2 * 8 + 2 * 4) + 3 * 8 * 16
    sizes = (2 * layer, 90)  # bytes of weights: of the layers with one each
    memory = Roofline(Machine(1e30, 1e9, "float32"), config, sizes, 2)
    decode = StepShape(0, 0, 3, 50)
    assert memory.seconds(decode) == pytest.approx(1e-9 * (2 * layer + 90 + 2 * 2 * 2 * 4 * 50))
    assert memory.seconds(StepShape(5, 15)) == pytest.approx(1e-9 * 2 * layer)
    arithmetic = Roofline(Machine(1e9, 1e30, "float32"), config, sizes, 2)
    flops = 2 * (2 * layer * 3 + 80 * 3) + 4 * 2 * 8 * 50
    assert arithmetic.seconds(decode) == pytest.approx(1e-9 * flops)
    assert arithmetic.seconds(StepShape(5, 15)) == pytest.approx(
        1e-9 * (2 * 2 * layer * 5 + 4 * 2 * 8 * 15)
    )


def test_shares_are_of_the_limit_and_only_the_host_of_batch_32_is_judged():
    pace = Pace("decode, batch 32", 32, (0.02, 0.03, 0.04), 0.015, (0.001, 0.004, 0.002))
    assert pace.share == pytest.approx(50.0)
    runs = [Mixed(500.0, 70.0), Mixed(480.0, 60.0)]
    speed = EngineSpeed(Machine(1e12, 4e10, "bfloat16"), [pace], runs, 1)
    mixed, host = findings(speed)
    assert (mixed.value, mixed.kept) == (65.0, True)
    assert (host.value, host.kept) == (2.0, False)
    assert engine_bench.rows(speed)[0][2:] == ("1,067", "15.0 ms", "50%")


def test_every_kind_of_step_is_measured_on_an_engine(monkeypatch):
    monkeypatch.setattr(machine, "SIDE", 256)
    monkeypatch.setattr(machine, "BUFFER", 4 << 20)
    config = replace(TINY, context_length=4096)
    model = build_model(config, RandomWeights(config), torch.float32, torch.device("cpu"))
    kernel = KernelConfig(num_blocks=3000, max_context=4096, vocab_size=config.vocab_size)
    live = LiveModel("tiny", model, kernel, threads=1)
    found = engine_bench.measure(live, 0.01, 1, lambda _line: None)
    names = [f"prefill, {tokens} tokens" for tokens in engine_bench.PROMPTS]
    names += [f"decode, batch {batch}" for batch in engine_bench.BATCHES]
    assert [pace.name for pace in found.paces] == names
    assert all(0 < pace.at_best < 1 for pace in found.paces)
    assert found.mixed[0].rate > 0
    assert found.peak_rss > 50 << 20


def test_a_card_is_not_held_to_the_limits_of_the_cpu():
    on_card = replace(tiny_model(), device=torch.device("cuda", 0))
    with pytest.raises(LiveError, match=r"the model runs on cuda:0, .* the CPU's; take python -m"):
        engine_bench.measure(LiveModel("tiny", on_card, tiny_config()), 0.01, 1, print)
