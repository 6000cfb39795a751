"""The kernel over the real model in fp32: how work is cut into steps never changes the text."""

import pytest
import torch

from engine.runtime.executor import TorchExecutor
from engine.runtime.loader import load_model
from engine.runtime.text.codec import TextCodec
from policies.config import PolicyConfig
from policies.fairness.config import FairnessConfig
from telemetry.events import PreemptMode, SequenceAdmitted, SequencePreempted
from tests.kernel.world import World, config

pytestmark = pytest.mark.model

TEXTS = (
    "The river rises in the mountains and",
    "def fibonacci(n):\n    ",
    "Water rights in the western states are",
    "Once upon a time, in a village by the sea, there lived a fisherman who",
    "1, 1, 2, 3, 5, 8,",
    "The three laws of thermodynamics state that energy",
)
OUTPUT = 18


@pytest.fixture(scope="module")
def model(model_path):
    return load_model(model_path, torch.float32)


@pytest.fixture(scope="module")
def prompts(model_path) -> list[list[int]]:
    codec = TextCodec.load(model_path)
    return [codec.encode(text, add_special=False) for text in TEXTS]


def world_on(model, **changes) -> World:
    kernel = config(vocab_size=model.config.vocab_size, num_blocks=96, **changes)
    return World(kernel, executor=TorchExecutor(model, kernel))


def generate(world: World, prompts: list[list[int]]) -> list[list[int]]:
    numbers = [world.submit("a", prompt, OUTPUT)[0] for prompt in prompts]
    world.run()
    world.check_idle()
    return [world.tokens[number] for number in numbers]


@pytest.fixture(scope="module")
def alone(model, prompts) -> list[list[int]]:
    """Each prompt by itself, computed in one chunk."""
    world = world_on(model, max_step_tokens=512)
    return [generate(world, [prompt])[0] for prompt in prompts]


def test_text_makes_sense(alone, model_path):
    codec = TextCodec.load(model_path)
    text = b"".join(codec.token_bytes(token) for token in alone[4]).decode()
    assert text.startswith(" 13, ")


def test_a_full_batch_gives_the_text_of_each_alone(model, prompts, alone):
    assert generate(world_on(model, max_step_tokens=512), prompts) == alone


@pytest.mark.parametrize("chunk", [1, 3, 16, 29])
def test_chunks_of_any_size_give_the_same_text(model, prompts, alone, chunk):
    world = world_on(model, max_step_tokens=8 + chunk, min_chunk=chunk)
    assert generate(world, prompts) == alone


def test_prefix_hits_give_the_same_text(model, prompts, alone):
    world = world_on(model)
    prefix = (prompts[3] * 4)[:40]
    longer = [prefix + prompt for prompt in prompts]
    cold = generate(world, longer)
    assert generate(world, longer) == cold
    second = [e for e in world.of(SequenceAdmitted) if e.sequence > len(prompts)]
    assert all(event.cached_tokens >= 32 for event in second)
    assert generate(world, prompts) == alone


def test_preemption_at_every_step_gives_the_same_text(model, prompts, alone):
    """All running sequences lose their place after each step."""
    world = world_on(model)
    numbers = [world.submit("a", prompt, OUTPUT)[0] for prompt in prompts]
    while world.step():
        for number in numbers:
            world.scheduler.preempt(number, world.clock.now())
    world.check_idle()
    assert len(world.of(SequencePreempted)) >= (OUTPUT - 1) * len(numbers)
    assert [world.tokens[number] for number in numbers] == alone


@pytest.mark.parametrize("mode", [PreemptMode.SWAP, PreemptMode.RECOMPUTE])
def test_swapped_work_continues_where_it_was(model, prompts, alone, mode):
    """KV goes to the host and back at every step, as the real executor moves it."""
    policy = PolicyConfig(preemption=str(mode))
    world = world_on(model, host_blocks=96, policy=policy)
    numbers = [world.submit("a", prompt, OUTPUT)[0] for prompt in prompts]
    while world.step():
        for number in numbers[::2]:
            world.scheduler.preempt(number, world.clock.now())
    world.check_idle()
    preempted = world.of(SequencePreempted)
    assert {event.mode for event in preempted if event.tokens_lost or event.swapped_blocks} == {
        mode
    }
    assert [world.tokens[number] for number in numbers] == alone


def test_paused_work_continues_where_it_was(model, prompts, alone):
    """Two tenants take each other's slots whenever one lags by 30 units."""
    fairness = FairnessConfig(max_lag=30.0)
    world = world_on(model, max_running=3, policy=PolicyConfig(fairness=fairness))
    numbers = [world.submit("ab"[i % 2], p, OUTPUT)[0] for i, p in enumerate(prompts)]
    world.run()
    world.check_idle()
    assert PreemptMode.PAUSE in {event.mode for event in world.of(SequencePreempted)}
    assert [world.tokens[number] for number in numbers] == alone


def test_memory_pressure_gives_the_same_text(model, prompts, alone):
    """Not enough blocks for all: the kernel preempts by itself."""
    world = world_on(model, kv_reserve=0.0)
    need = sum(-(-(len(p) + OUTPUT) // 16) for p in prompts)
    kernel = config(
        vocab_size=model.config.vocab_size, num_blocks=need - 4, kv_reserve=0.0, max_context=96
    )
    world = World(kernel, executor=TorchExecutor(model, kernel))
    assert generate(world, prompts) == alone
    assert world.of(SequencePreempted)


def test_overlapped_steps_give_the_same_text(model, prompts, alone):
    assert generate(world_on(model, max_in_flight=2), prompts) == alone


def test_forked_choices_of_a_greedy_prompt_are_alike(model, prompts, alone):
    world = world_on(model)
    numbers = world.submit("a", prompts[3], OUTPUT, n=3)
    world.run()
    assert [world.tokens[n] for n in numbers] == [alone[3]] * 3


def test_poisoned_memory_reaches_nobody(model, prompts, alone):
    """Every block starts as NaN: what was never written must not be read."""
    kernel = config(vocab_size=model.config.vocab_size, num_blocks=96)
    executor = TorchExecutor(model, kernel)
    executor.cache.blocks.fill_(float("nan"))
    assert generate(World(kernel, executor=executor), prompts) == alone
