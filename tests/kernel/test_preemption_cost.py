"""What a preemption is predicted to cost, and what it does."""

from dataclasses import replace

import pytest

from engine.core.plan import Transfer
from engine.core.preemption_cost import recompute_cost, swap_cost
from engine.sim.profile import A10G_LLAMA2_7B, CostProfile, HostLink
from policies.config import PolicyConfig
from policies.estimates import Company, MoveStalls
from telemetry.events import PreemptMode, SequencePreempted
from tests.kernel.world import World, config

MS = 1_000_000


def crowded(profile: CostProfile = A10G_LLAMA2_7B, **changes) -> World:
    """Four answers that outgrow the memory together, each from a prompt of its own."""
    policy = PolicyConfig(preemption="swap" if "host_blocks" in changes else "recompute")
    kernel = {"num_blocks": 40, "kv_reserve": 0.0, "prefix_cache": False, "policy": policy}
    world = World(config(**(kernel | changes)), profile=profile)
    for number in range(40):
        world.submit("past", 20 + number % 9, 5)
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


@pytest.mark.parametrize(("overlap", "least", "most"), [(False, 5, 10), (True, 0, 0)])
def test_moves_cost_what_steps_waited_for_them(overlap, least, most):
    """Before the computation a block costs its time each way, or half where one goes out as another

    comes in; beside the computation nothing while it fits.
    """
    link = HostLink(overlap=overlap)
    one_way = 1e9 * 16 * link.bytes_per_token / link.bytes_per_second
    world = crowded(
        replace(A10G_LLAMA2_7B, link=link),
        host_blocks=100,
        host_block_ns=one_way,
        host_overlap=overlap,
    )
    assert {event.mode for event in world.of(SequencePreempted)} == {PreemptMode.SWAP}
    predicted = swap_cost(world.scheduler._state, 5)
    assert least * one_way <= predicted <= most * one_way + 1


def test_moving_out_costs_what_does_not_fit_beside_the_step():
    block = 10.0 * MS
    world = crowded(host_blocks=100, host_block_ns=block, host_overlap=True)
    state = world.scheduler._state
    state.move_stalls = MoveStalls()
    assert state.batch.running == 0
    computing = A10G_LLAMA2_7B.decode_base * MS
    assert swap_cost(state, 1) == 0
    assert swap_cost(state, 10) == pytest.approx(10 * block - computing, rel=0.1)
    state.transfers.extend([Transfer(0, 0, to_host=True)] * 10)  # the step waits for these anyway
    assert swap_cost(state, 10) == 10 * block


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
