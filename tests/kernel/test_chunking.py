"""Prompts beside running decodes: chunks are cut to the tightest TPOT target."""

import numpy as np
import pytest

from engine.sim.executor import SimExecutor, counting_tokens
from engine.sim.fitted import FittedProfile, Piece
from engine.sim.profile import CostProfile, LinearProfile
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


# beside it, 0.1 ms for each prompt token and 0.1 ms for each 1,000 positions that it attends to
ATTENTIVE = FittedProfile((Piece(20.0, 0.1, 0.0001, 0.0, 0.0),))


def durations(
    policy_target: float,
    request_target: float | None = None,
    profile: CostProfile = PROFILE,
    prompt: int = 1500,
    min_chunk: int = 16,
) -> list[float]:
    """Milliseconds of the steps that compute a long prompt beside a running decode."""
    kernel = config(
        max_step_tokens=512,
        min_chunk=min_chunk,
        max_context=8192,
        num_blocks=800,
        policy=PolicyConfig(tpot_target=policy_target),
    )
    world = World(kernel)
    world.use(SimExecutor(profile, counting_tokens(VOCABULARY), world.clock.advance))
    for length in (40, 90, 200, 350):  # what the step-time model learns from
        world.submit("warm", length, 30)
    world.run()
    world.submit("a", 10, 400, tpot_target=request_target)
    for _ in range(5):
        world.step()
    seen = len(world.of(StepCommitted))
    (late,) = world.submit("b", prompt, 1)
    while late not in world.ended:
        world.step()
    return [event.duration / 1e6 for event in world.of(StepCommitted)[seen:]]


@pytest.mark.parametrize(("policy", "request_"), [(0.12, None), (0.0, 0.12), (9.0, 0.12)])
def test_decodes_keep_their_target_while_a_long_prompt_is_computed(policy, request_):
    steps = durations(policy, request_)
    assert steps[0] <= 120 * 1.2  # the first of its kind, which nothing was learned from yet
    assert max(steps[1:]) <= 120 * 1.05
    assert np.median(steps) >= 100  # and the room up to it is used


def test_the_end_of_a_long_prompt_keeps_the_target_as_its_beginning_does():
    """Its tokens attend to more and more, so that fewer and fewer fit a step."""
    steps = durations(0.12, profile=ATTENTIVE, prompt=6000)
    settled = steps[4:]  # the model has seen what attending costs
    assert max(settled) <= 120 * 1.05
    assert np.median(settled) >= 100


def test_without_a_target_prompts_take_what_a_step_holds():
    assert max(durations(0.0)) > 500


def test_prompts_advance_even_when_the_target_cannot_be_kept():
    steps = durations(0.001, min_chunk=32)
    assert max(steps) <= 2 * 20 * 1.05  # by fewer than the 32 tokens that are worth a place else
    assert 1500 // 20 <= len(steps) <= 1500 // 19 + 1


def test_the_least_piece_is_kept_where_it_takes_little():
    steps = durations(0.001, profile=ATTENTIVE, prompt=1600)
    assert 1600 // 16 <= len(steps) <= 1600 // 16 + 1


def test_the_budget_is_the_largest_that_fits():
    assert prefill_budget(lambda n: n / 1000, 0.1, 512, 32) == 100
    assert prefill_budget(lambda n: n / 1000, 1.0, 512, 32) == 512
    assert prefill_budget(lambda n: n, 20, 20, 32) == 20


@pytest.mark.parametrize(
    ("decodes", "token", "budget", "granted"),
    [
        (100, 1, 512, 32),  # 32 tokens make the step a third longer
        (100, 1, 20, 20),  # no more than there is room for
        (100, 4, 512, 25),  # twice as long, 200
        (100, 80, 512, 8),  # always a quarter of 32
        (9, 1, 512, 9),  # 9 + 9 are more than 10, which is the target, but not than 18
        (1, 1, 512, 9),  # the target itself leaves as much
    ],
)
def test_prompts_beside_slow_decodes_advance_by_a_little(decodes, token, budget, granted):
    assert prefill_budget(lambda n: decodes + token * n, 10, budget, 32) == granted
