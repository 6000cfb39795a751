"""What a preemption is predicted to cost, and what it does."""

from dataclasses import replace

import pytest

from engine.core.preemption_cost import recompute_cost
from engine.core.step_work import stall
from engine.sim.profile import A10G_LLAMA2_7B, CostProfile, HostLink
from policies.config import PolicyConfig
from policies.estimates import Company, MoveStalls
from telemetry.events import PreemptMode, SequencePreempted, StepCommitted
from tests.kernel.world import World, config

MS = 1_000_000


def crowded(profile: CostProfile = A10G_LLAMA2_7B, **changes) -> World:
    """Four answers that outgrow the memory together, each from a prompt of its own."""
    policy = PolicyConfig(preemption="swap" if "host_blocks" in changes else "recompute")
    kernel = {"num_blocks": 40, "kv_reserve": 0.0, "prefix_cache": False, "policy": policy}
    world = World(config(**(kernel | changes)), profile=profile)
    for number in range(40):  # prompts alone and beside decodes
        world.submit("past", 20 + number % 9, 5)
        world.step()
        world.submit("past", 20 + number % 7, 5)
        world.run()
    for tenant in "abcd":
        world.submit(tenant, 60, 200)
    world.run()
    return world


def test_a_recompute_costs_what_the_profile_says():
    """A prompt in a step of its own, where the sequence would have been the one that decodes."""
    state = crowded().scheduler._state
    state.company = Company()
    profile = A10G_LLAMA2_7B
    prompt = profile.prefill_base + 40 * profile.prefill_token
    decode = profile.decode_base + profile.decode_sequence + 40 * profile.decode_context_token
    assert recompute_cost(state, 40) / MS == pytest.approx(prompt - decode, rel=0.1)


def test_the_prediction_stands_in_the_event():
    taken = crowded().of(SequencePreempted)
    assert taken
    assert {event.mode for event in taken} == {PreemptMode.RECOMPUTE}
    assert all(event.predicted_cost > 0 for event in taken)


@pytest.mark.parametrize("overlap", [False, True])
def test_moves_are_predicted_to_cost_what_steps_wait_for_them(overlap):
    """Whoever goes out or comes back in one step, and beside whatever else it computes."""
    link = HostLink(bytes_per_second=12e8, overlap=overlap)
    block = 1e9 * 16 * link.bytes_per_token / link.bytes_per_second
    world = crowded(
        replace(A10G_LLAMA2_7B, link=link),
        host_blocks=100,
        host_block_ns=block,
        host_overlap=overlap,
    )
    for number in range(60):
        world.submit("abcd"[number % 4], 60 + number % 7, 100)
    world.run()
    taken = world.of(SequencePreempted)
    assert {event.mode for event in taken} == {PreemptMode.SWAP}
    waited = sum(event.stall for event in world.of(StepCommitted))
    assert waited > 10 * block
    predicted = sum(event.predicted_cost for event in taken)
    assert predicted == pytest.approx(waited, rel=0.1)


def test_what_a_step_computes_hides_moves_and_what_else_it_takes_does_not():
    world = crowded(host_blocks=100, host_block_ns=1.0 * MS, host_overlap=True)
    state = world.scheduler._state
    assert stall(state, 10, 20.0 * MS) == 0
    assert stall(state, 30, 20.0 * MS) == pytest.approx(10 * MS, rel=0.01)
    state.move_stalls = MoveStalls()
    state.move_stalls.observe_rest(2.0 * MS)
    assert stall(state, 30, 20.0 * MS) == pytest.approx(12 * MS)


def test_company_is_remembered():
    company = Company()
    for _ in range(500):
        company.observe(2, 0)
    assert company.alone == pytest.approx(0.5, abs=0.02)
    for _ in range(500):
        company.observe(1, 300)
    assert company.alone == pytest.approx(0.0, abs=0.02)
    assert company.tokens == pytest.approx(300, rel=0.02)


def test_what_moves_held_up_counts_for_each_block():
    stalls = MoveStalls()
    assert stalls.per_block == 0
    stalls.observe(10, 500.0)
    assert stalls.per_block == 50.0
    for rest in (3.0, 1.0):
        stalls.observe_rest(rest)
    assert stalls.rest == 2.0
