"""The comparison of simulator and engine, on a tiny random model where it takes an engine."""

import asyncio
from dataclasses import replace

import pytest
import torch

from engine.core.config import KernelConfig
from engine.runtime.loader import build_model
from engine.sim.profile import A10G_LLAMA2_7B, StepShape
from loadgen import profiling, reality, step_error
from loadgen.limits import Finding
from loadgen.live import LiveError, LiveModel, Step, StepWatch
from telemetry.events import Cause, Phase, SequenceArrived, SequenceEnded, StepCommitted
from telemetry.lineage import Lineage
from tests.runtime.driver import TINY, RandomWeights

LINEAGE = Lineage("gold", "task", "run", "attempt", "request")
KERNEL = KernelConfig(num_blocks=2000, max_context=4096, vocab_size=TINY.vocab_size)


@pytest.fixture(scope="module")
def tiny() -> LiveModel:
    config = replace(TINY, context_length=4096)
    model = build_model(config, RandomWeights(config), torch.float32, torch.device("cpu"))
    return LiveModel("tiny", model, KERNEL, threads=1)


def committed(now: int, step: int, duration: int) -> StepCommitted:
    return StepCommitted(now, step, duration, (1,), (1,), 0, 0, 0)


def arrived(now: int) -> SequenceArrived:
    return SequenceArrived(now, 1, LINEAGE, ("gold",), 10, 5, None, None)


def ended(now: int) -> SequenceEnded:
    return SequenceEnded(
        *(now, 1, LINEAGE, ("gold",), Cause.LENGTH, Phase.DECODE, "", 10, 0, 5, 0, 1, 0, 0, 0)
    )


def test_host_time_is_what_passes_between_steps_but_not_idleness():
    watch, a, b = StepWatch(), StepShape(10), StepShape(0, 0, 1, 11)
    shapes = {1: a, 2: b, 4: a}
    watch.fold([arrived(0), committed(50_000_000, 1, 40_000_000)], shapes)
    watch.fold([committed(80_000_000, 2, 25_000_000)], shapes)
    watch.fold([committed(90_000_000, 3, 1), ended(90_000_000)], shapes)  # was not computed
    watch.fold([arrived(900_000_000)], shapes)
    watch.fold([committed(950_000_000, 4, 45_000_000)], shapes)
    assert watch.steps == [Step(a, 0.04, None), Step(b, 0.025, 0.005), Step(a, 0.045, None)]
    assert shapes == {}


def test_arrivals_follow_the_seed_and_the_stated_lengths():
    load = reality.make_workload(8.0, 200.0, 5)
    assert load == reality.make_workload(8.0, 200.0, 5) != reality.make_workload(8.0, 200.0, 6)
    prompts = [one.prompt for one in load.requests]
    outputs = [one.output for one in load.requests]
    assert (min(prompts), max(prompts), min(outputs), max(outputs)) == (32, 256, 16, 128)
    assert len(prompts) == pytest.approx(1600, rel=0.08)
    assert sum(one.client for one in load.requests) == pytest.approx(400, rel=0.1)
    assert [flow[0].weight for flow in load.flows] == [3.0, 1.0]
    times = [one.arrival for one in load.requests]
    assert times == sorted(times)
    climbing = [r.arrival for r in reality.make_workload(0.4, 200.0, 5, rate_to=8.0).requests]
    assert sum(time > 100e9 for time in climbing) > 2 * sum(time < 100e9 for time in climbing)
    with pytest.raises(LiveError, match="no request arrives"):
        reality.make_workload(0.001, 1.0, 1)


def test_twice_the_capacity_doubles_the_time():
    kernel = reality.kernel_for(KERNEL)
    rate = 2 * reality.capacity(kernel, A10G_LLAMA2_7B)
    run = reality.simulate(reality.make_workload(rate, 60.0, 1), kernel, A10G_LLAMA2_7B)
    assert run.seconds == pytest.approx(120, rel=0.1)
    assert run.running == pytest.approx(32, abs=2)
    # each sends twice its share, so both wait alike
    assert run.ttft_by_tenant["gold"] == pytest.approx(run.ttft_by_tenant["bronze"], rel=0.2)


def test_the_engine_and_the_simulator_get_the_same_requests(tiny):
    kernel = reality.kernel_for(KERNEL, running=8)
    load = reality.make_workload(100.0, 0.3, 1)
    live, steps = asyncio.run(reality.run_live(load, kernel, tiny))
    tokens = sum(one.output for one in load.requests)
    assert live.throughput * live.seconds == pytest.approx(tokens)
    assert len(steps) == live.steps
    # the step that ends a prompt draws its first token, and each decode row one more
    assert sum(step.shape.prefill_tokens for step in steps) == sum(r.prompt for r in load.requests)
    decoded = sum(step.shape.decode_sequences for step in steps)
    assert decoded == tokens - len(load.requests)
    assert 0 < live.ttft < live.seconds


def test_the_whole_grid_is_profiled_on_an_engine(tiny):
    found = profiling.measure(tiny, 0.01, lambda _share: None)
    assert found.passes == 1
    rounds = profiling.grid(KERNEL.num_blocks * KERNEL.block_size, 4096)
    wanted = sum(len(r.prompts) + (r.decoding > 0) for r in rounds)
    assert len(found.measured) == wanted
    decodes = [m for m in found.measured if not m.shape.prefill_tokens]
    assert all(one.steps >= profiling.DECODES for one in decodes)
    assert found.fit.profile.duration(StepShape(512, 512 * 256)) > 0
    assert found.fit.profile.overhead > 0
    about = profiling.about(tiny, found)
    assert (about["model"], about["dtype"], about["threads"]) == ("tiny", "float32", 1)
    link = found.fit.profile.link
    assert link.bytes_per_token == 2 * TINY.num_layers * TINY.num_kv_heads * TINY.head_dim * 4


def test_profile_parts_and_live_runs_alternate(tiny):
    tiny = replace(tiny, kernel=replace(KERNEL, num_blocks=400, max_context=600))  # a small grid
    told = []
    plan = reality.Plan(seconds=0.3, load=1.5, rate=60.0, repeat=1, profile_seconds=0.01)
    outcome = reality.compare(tiny, plan, told.append)
    assert [line.partition(",")[0].partition(":")[0] for line in told] == [
        "profile",
        "live run 1 of 1",
        "profile",
    ]
    assert outcome.profiled.passes == 2
    assert (outcome.rate, len(outcome.comparisons)) == (60.0, 1)
    one = outcome.comparisons[0]
    tokens = sum(r.output for r in reality.make_workload(60.0, 0.3, 1).requests)
    assert one.live.throughput * one.live.seconds == pytest.approx(tokens)
    assert one.simulated.throughput * one.simulated.seconds == pytest.approx(tokens)


def test_a_cache_too_small_to_profile_is_refused(tiny):
    small = replace(tiny, kernel=replace(KERNEL, num_blocks=16))
    with pytest.raises(LiveError, match=r"raise kernel\.kv_memory"):
        profiling.measure(small, 0.01, lambda _share: None)


def test_sequences_that_end_before_all_is_measured_are_no_profile(tiny, monkeypatch):
    """As on a machine so busy that a round takes longer than they do."""
    monkeypatch.setattr(profiling, "LONG", profiling.DECODES - 1)
    small = replace(tiny, kernel=replace(KERNEL, num_blocks=100, max_context=300))
    with pytest.raises(LiveError, match="10 times a sequence had said its 4 tokens"):
        profiling.measure(small, 0.01, lambda _share: None)


def test_steps_of_a_linear_device_are_foretold_and_the_warm_up_is_not_counted():
    shapes = [StepShape(0, 0, 1 + n % 32, 200 * (1 + n % 32)) for n in range(300)]
    shapes += [StepShape(n % 400 + 2, (n % 400 + 2) * 100, 16, 3000) for n in range(300)]
    steps = [Step(shape, A10G_LLAMA2_7B.duration(shape) / 1e9, 0.001) for shape in shapes]
    result = step_error.replay(steps)
    assert (result.steps, len(result.errors)) == (600, 550)
    error, speed = step_error.findings(result)
    assert error.value < 3
    assert speed.kept
    with pytest.raises(LiveError, match="too few"):
        step_error.replay(steps[:50])


def test_deviations_either_way_count_against_the_limit():
    run = reality.Figures(60.0, 100.0, 2.0, {"gold": 1.0, "bronze": 3.0}, 32.0, 500)
    slow = replace(run, throughput=94.0, ttft=2.2, ttft_by_tenant={"gold": 1.2, "bronze": 3.0})
    pairs = [reality.Comparison(1, 50, run, slow), reality.Comparison(2, 50, slow, run)]
    throughput, ttft, bronze, gold = reality.findings(pairs[:1])
    assert throughput.value == pytest.approx(6.0)
    assert not throughput.kept
    assert ttft.value == pytest.approx(10.0)
    assert ttft.kept
    assert bronze.value == 0
    assert gold.value == pytest.approx(20.0)
    assert not gold.kept
    assert reality.findings(pairs[1:])[0].value == pytest.approx(100 / 0.94 - 100)
    assert len(reality.rows(pairs)) == 4


def test_a_finding_says_which_side_of_its_limit_it_is_on():
    assert Finding("x", 5.0, 4.0, "us").row()[-2:] == ("1.25", "NO")
    assert Finding("x", 5.0, 4.0, "/s", "least").row()[2:] == (">= 4 /s", "1.25", "yes")
    assert Finding("x", 8000.0, 600_000.0, "/s", "least").figures()["kept"] is False
