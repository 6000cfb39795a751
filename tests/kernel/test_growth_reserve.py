"""Newcomers leave free what running work will need, as far as past outputs tell."""

import pytest

from engine.core.config import KernelConfig
from engine.core.plan import Sampling
from policies.config import PolicyConfig
from telemetry.events import Cause, FlowStalled, PreemptReason, SequencePreempted, Stall
from tests.kernel.world import World, config

STOP = 7
SAMPLING = Sampling(temperature=0.0, stop_token_ids=(STOP,))
LENGTHS = {"short": [16], "long": [200], "either": [16, 200]}


def draws(join, index: int) -> int:
    """The prompt says how long the answer is."""
    return STOP if index + 1 >= int(join.tokens[0]) else 1


def kernel(**changes) -> KernelConfig:
    """Room for 512 tokens; KV that gives way is computed again."""
    defaults = {
        "num_blocks": 32,
        "kv_reserve": 0.0,
        "prefix_cache": False,
        "max_step_tokens": 256,
        "policy": PolicyConfig(preemption="recompute"),
    }
    return config(**(defaults | changes))


class Speakers(World):
    """A world in which each tenant's outputs have lengths of their own, which it does not know."""

    def __init__(self, **changes) -> None:
        super().__init__(kernel(**changes), draw=draws)

    def ask(self, tenant: str, number: int = 0, prompt: int = 32) -> int:
        lengths = LENGTHS[tenant]
        tokens = [lengths[number % len(lengths)]] * prompt
        (sequence,) = self.submit(tenant, tokens, 400, sampling=SAMPLING)
        return sequence

    def learn(self, tenant: str) -> "Speakers":
        for number in range(20):
            self.ask(tenant, number)
        self.run()
        return self


def running(world: World, number: int) -> bool:
    return bool((world.scheduler._state.batch.ids == number).any())


def test_a_newcomer_waits_for_memory_that_long_answers_will_need():
    """Of answers of 200 tokens to prompts of 32, two fit into memory for 512, and three do not."""
    world = Speakers().learn("long")
    numbers = [world.ask("long") for _ in range(3)]
    world.step()
    assert [running(world, number) for number in numbers] == [True, True, False]
    assert [e.cause for e in world.of(FlowStalled)][-1] is Stall.KV_BLOCKS
    world.run()
    assert set(world.ended) >= set(numbers)


def test_short_answers_are_let_in_together():
    world = Speakers().learn("short")
    numbers = [world.ask("short") for _ in range(6)]
    world.step()
    assert all(running(world, number) for number in numbers)
    world.run()
    assert not world.of(SequencePreempted)


def test_before_anything_is_known_of_lengths_only_the_fixed_share_is_kept():
    world = Speakers()
    for _ in range(4):
        world.ask("long")
    world.step()
    assert world.scheduler.running == 4
    world.run()
    assert {e.reason for e in world.of(SequencePreempted)} == {PreemptReason.KV_GROWTH}


@pytest.mark.parametrize("deviations", [0.0, 10.0])
def test_a_lone_request_always_enters(deviations):
    world = Speakers(kv_growth_deviations=deviations).learn("long")
    number = world.ask("long", prompt=110)
    world.step()
    assert running(world, number)


@pytest.mark.parametrize("kv_admission", ["grow", "predicted_peak", "reserve"])
@pytest.mark.parametrize("overhead", [0, 20])
def test_a_request_as_large_as_the_memory_runs_when_nothing_else_does(kv_admission, overhead):
    policy = PolicyConfig(kv_admission=kv_admission, client_overhead_tokens=overhead)
    world = World(config(num_blocks=8, block_size=16, max_context=128, policy=policy))
    (large,) = world.submit(prompt=100, output=28)
    (small,) = world.submit(prompt=10, output=5)
    world.run()
    assert [world.ended[number].cause for number in (large, small)] == [Cause.LENGTH] * 2


@pytest.mark.parametrize(("host_blocks", "entered"), [(0, 5), (64, 8)])
def test_only_where_giving_way_costs_a_recompute_is_more_than_the_mean_kept(host_blocks, entered):
    """Half of the answers take 200 tokens: in the mean eight fit into memory for 1,024."""
    policy = PolicyConfig(preemption="swap")
    world = Speakers(policy=policy, host_blocks=host_blocks, num_blocks=64, max_running=16)
    world.learn("either")
    for number in range(16):
        world.ask("either", number)
    world.step()
    assert world.scheduler.running == entered
