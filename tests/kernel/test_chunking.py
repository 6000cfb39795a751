"""Prompts beside running decodes: chunks are cut to the tightest TPOT target."""

import numpy as np
import pytest

from engine.sim.executor import SimExecutor, counting_tokens
from engine.sim.profile import LinearProfile
from policies.chunking import prefill_budget
from policies.config import PolicyConfig
from telemetry.events import StepCommitted
from tests.kernel.world import VOCABULARY, World, config

# 20 ms a decode step, and 1 ms for each prompt token beside it
PROFILE = LinearProfile(
    decode_base=20.0,
    decode_sequence=0.0,
    decode_context_token=0.0,
    prefill_base=0.0,
    prefill_token=1.0,
    overhead=0.0,
)


def durations(policy_target: float, request_target: float | None = None) -> list[float]:
    """Milliseconds of the steps that compute 1,500 prompt tokens beside a running decode."""
    kernel = config(
        max_step_tokens=512,
        min_chunk=16,
        max_context=4096,
        num_blocks=400,
        policy=PolicyConfig(tpot_target=policy_target),
    )
    world = World(kernel)
    world.use(SimExecutor(PROFILE, counting_tokens(VOCABULARY), world.clock.advance))
    for prompt in (40, 90, 200, 350):  # what the step-time model learns from
        world.submit("warm", prompt, 30)
    world.run()
    world.submit("a", 10, 400, tpot_target=request_target)
    for _ in range(5):
        world.step()
    seen = len(world.of(StepCommitted))
    (late,) = world.submit("b", 1500, 1)
    while late not in world.ended:
        world.step()
    return [event.duration / 1e6 for event in world.of(StepCommitted)[seen:]]


@pytest.mark.parametrize(("policy", "request_"), [(0.12, None), (0.0, 0.12), (9.0, 0.12)])
def test_decodes_keep_their_target_while_a_long_prompt_is_computed(policy, request_):
    steps = durations(policy, request_)
    assert steps[0] <= 120 * 1.2  # the first of its kind, which nothing was learned from yet
    assert max(steps[1:]) <= 120 * 1.05
    assert np.median(steps) >= 100  # and the room up to it is used


def test_without_a_target_prompts_take_what_a_step_holds():
    assert max(durations(0.0)) > 500


def test_prompts_advance_even_when_the_target_cannot_be_kept():
    steps = durations(0.001)
    assert max(steps) <= 20 + 16 + 1
    assert len(steps) >= 1500 // 16


def test_the_budget_is_the_largest_that_fits():
    assert prefill_budget(lambda n: n / 1000, 0.1, 512, 32) == 100
    assert prefill_budget(lambda n: n / 1000, 1.0, 512, 32) == 512
    assert prefill_budget(lambda n: n / 1000, 0.01, 512, 32) == 32
    assert prefill_budget(lambda n: n / 1000, 0.01, 20, 32) == 20
