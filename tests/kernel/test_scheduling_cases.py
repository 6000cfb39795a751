"""Further situations that real schedulers got wrong (numbers of the project's list of cases)."""

from collections import Counter
from dataclasses import replace

import pytest

from policies.config import PolicyConfig
from policies.cost import CostConfig
from policies.fairness.config import FairnessConfig
from telemetry.events import (
    Cause,
    FlowStalled,
    PreemptMode,
    PreemptReason,
    SequenceAdmitted,
    SequenceArrived,
    SequenceEnded,
    SequencePreempted,
    Stall,
    StepCommitted,
    StepPlanned,
)
from telemetry.units import SECOND
from tests.kernel.memory import CheckingExecutor
from tests.kernel.world import VOCABULARY, World, config


def fair(max_lag: float, **policy) -> PolicyConfig:
    return PolicyConfig(fairness=FairnessConfig("fair", max_lag=max_lag), **policy)


def admitted(world: World) -> list[int]:
    return [e.sequence for e in world.of(SequenceAdmitted) if not e.resumed]


# -- 4: sustained higher-class load ----------------------------------------------------------------


@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("ageing", [0.5, 2.0])
def test_a_lower_class_waits_no_longer_than_its_ageing_bound(levels, ageing):
    """It goes before all that come more than `ageing` seconds a level after it, and no sooner."""
    fairness = FairnessConfig("priority", ageing=ageing)
    world = World(config(max_running=1, policy=PolicyConfig(fairness=fairness)))
    world.submit("high", 10, 3, priority=levels)
    (low,) = world.submit("low", 10, 3)
    came = world.clock.now()
    while low not in admitted(world):
        world.submit("high", 10, 3, priority=levels)  # faster than one slot can serve
        world.step()
        assert world.clock.now() < came + 60 * SECOND
    arrived = {e.sequence: e.now for e in world.of(SequenceArrived)}
    before = [arrived[n] for n in admitted(world)[: admitted(world).index(low)]]
    limit = came + int(levels * ageing * SECOND)
    assert max(before) <= limit
    behind = [n for n in arrived if n != low and arrived[n] <= limit and n not in admitted(world)]
    assert behind == []


def test_without_ageing_the_lower_class_waits_for_as_long_as_the_higher_one_has_work():
    world = World(config(max_running=1, policy=PolicyConfig(fairness=FairnessConfig("priority"))))
    world.submit("high", 10, 3, priority=1)
    (low,) = world.submit("low", 10, 3)
    for _ in range(300):
        world.submit("high", 10, 3, priority=1)
        world.step()
    assert low not in admitted(world)


# -- 5: the running cap is full of others' work ----------------------------------------------------


def test_an_entitled_waiter_gets_a_slot_of_a_full_batch():
    """`gold` is owed three quarters; it waits until it lags by the bound, not for an end."""
    world = World(config(max_running=4, policy=fair(60.0)))
    for _ in range(8):
        world.submit("bronze", 10, 300)
    for _ in range(5):
        world.step()
    (gold,) = world.submit("gold", 10, 20, weight=3.0)
    steps = 0
    while gold not in admitted(world):
        world.step()
        steps += 1
    assert steps <= 60 / (2 * 4) + 2  # the four in the batch make it lag by 8 a step
    (taken,) = world.of(SequencePreempted)
    assert (taken.mode, taken.beneficiary) == (PreemptMode.PAUSE, gold)
    world.run()
    world.check_idle()


def test_a_flow_whose_turn_it_is_not_waits_for_its_share_on_the_record():
    """`b` comes in at what `a` has been served; once `a` has had more, it is the turn of `b`."""
    world = World(config(max_running=1, policy=fair(10_000.0)))
    world.submit("a", 50, 6)
    world.step()
    (second,) = world.submit("a", 10, 1)
    world.step()
    (other,) = world.submit("b", 10, 2)
    world.run()
    told = [(e.flow, e.cause, e.sequence) for e in world.of(FlowStalled)]
    assert told == [
        (("a",), Stall.SLOTS, second),
        (("b",), Stall.SHARE, other),
        (("a",), Stall.SHARE, second),
        (("b",), Stall.SLOTS, other),
        (("b",), None, None),
        (("a",), Stall.SLOTS, second),
        (("a",), None, None),
    ]


def test_a_flow_that_comes_to_wait_behind_another_waits_for_its_share_on_the_record():
    world = World(config(max_running=1, policy=fair(10_000.0)))
    world.submit("a", 50, 6)
    world.submit("b", 10, 1)
    world.step()
    (late,) = world.submit("a", 10, 1)
    world.step()
    last = world.of(FlowStalled)[-1]
    assert (last.flow, last.cause, last.sequence) == (("a",), Stall.SHARE, late)


@pytest.mark.parametrize("pause", [True, False])
@pytest.mark.parametrize("host_blocks", [0, 100])
def test_two_equal_requests_do_not_take_turns_in_preempting_each_other(pause, host_blocks):
    """One slot for two: each turn lasts until the lag turns around, which takes real progress."""
    max_lag, output = 50.0, 200
    world = World(config(max_running=1, host_blocks=host_blocks, policy=fair(max_lag, pause=pause)))
    world.submit("a", 20, output)
    world.submit("b", 20, output)
    world.run()
    world.check_idle()
    cost = 2 * (20 + 2 * output)
    assert len(world.of(SequencePreempted)) <= cost / max_lag + 1


def test_of_two_equal_requests_that_outgrow_the_memory_always_the_same_gives_way():
    world = World(config(num_blocks=10, kv_reserve=0.0))
    first, second = world.submit("a", 60, 60)[0], world.submit("a", 60, 60)[0]
    world.run()
    victims = [e.sequence for e in world.of(SequencePreempted)]
    assert set(victims) == {second}
    assert len(victims) <= 2
    assert [world.ended[n].cause for n in (first, second)] == [Cause.LENGTH] * 2


# -- 7: a victim that would have been part of the step ---------------------------------------------


@pytest.mark.parametrize("host_blocks", [0, 100])
def test_a_victim_leaves_its_step_whole_and_nobody_else_misses_it(host_blocks):
    """Six that all decode in each step, until memory for one of them has to come from another."""
    kernel = {"num_blocks": 24, "kv_reserve": 0.0, "max_running": 6, "host_blocks": host_blocks}
    world = World(config(**kernel, max_step_tokens=512, policy=PolicyConfig(preemption="swap")))
    world.use(CheckingExecutor(VOCABULARY, world.clock.advance))
    numbers = [world.submit("a", 30, 60)[0] for _ in range(6)]
    seen, steps = 0, 0
    while world.scheduler.running or world.scheduler.waiting:
        before = len(world.events)
        world.step()
        new = world.events[before:]
        taken = {e.sequence for e in new if isinstance(e, SequencePreempted)}
        back = {e.sequence for e in new if isinstance(e, SequenceAdmitted)}
        (plan,) = [e for e in new if isinstance(e, StepPlanned)]
        assert not (taken - back) & set(plan.sequences)
        assert len(plan.sequences) == plan.running  # every runner has its row
        ends = sum(isinstance(e, SequenceEnded) for e in new)
        assert world.scheduler.running == plan.running - ends
        seen, steps = seen + len(taken), steps + 1
    assert seen > 0
    assert steps < 200
    assert all(len(world.tokens[n]) == 60 for n in numbers)


# -- 8: what a preemption gains --------------------------------------------------------------------


def test_the_victim_is_chosen_by_what_really_comes_free():
    """The choices of one prompt hold most blocks, but share them; the single request frees more."""
    policy = fair(40.0, preemption="swap")
    kernel = {"num_blocks": 26, "host_blocks": 100, "kv_reserve": 0.0, "max_step_tokens": 512}
    world = World(config(**kernel, policy=policy))
    choices = world.submit("a", 160, 100, n=3)
    (single,) = world.submit("a", 75, 100)
    for _ in range(5):
        world.step()
    held = {s.id: len(s.blocks) for s in world.scheduler._state.batch.live()}
    assert all(held[n] > held[single] for n in choices)
    (poor,) = world.submit("b", 150, 5)  # 10 blocks, more than there are
    while poor not in admitted(world):
        world.step()
    taken = world.of(SequencePreempted)
    assert [e.sequence for e in taken] == [single]
    assert taken[0].blocks_freed == held[single]


def test_shared_blocks_do_not_count_as_freed():
    world = World(config(prefix_cache=False))
    leader, second = world.submit("a", 40, 20, n=2)
    for _ in range(3):
        world.step()
    for number in (second, leader):
        free = world.scheduler.free_blocks
        world.scheduler.preempt(number, world.clock.now())
        world._collect()
        event = world.of(SequencePreempted)[-1]
        assert event.blocks_freed == world.scheduler.free_blocks - free
    assert [e.blocks_freed for e in world.of(SequencePreempted)] == [1, 3]


# -- 9: admission at 90% of the memory -------------------------------------------------------------


def test_newcomers_do_not_thrash_with_long_residents():
    """A newcomer is admitted for its whole prompt, not for its first chunk."""
    world = World(
        config(num_blocks=280, max_context=4096, max_step_tokens=96, min_chunk=16, max_running=16)
    )
    residents = [world.submit("a", 950, 100)[0] for _ in range(4)]
    while any(n not in world.tokens for n in residents):
        world.step()
    assert world.scheduler.free_blocks + world.scheduler.cached_blocks < 0.15 * 280
    for _ in range(12):
        world.submit("a", 300, 40)
    world.run()
    world.check_idle()
    computed = sum(sum(e.counts) for e in world.of(StepPlanned))
    again = sum(e.recomputed_tokens for e in world.of(StepCommitted))
    assert again <= 0.05 * computed
    assert max(e.recomputed_tokens for e in world.of(SequenceEnded)) <= 1050
    useful = 4 * (950 + 100) + 12 * (300 + 40)
    assert computed == useful - 16 + again  # the last token of each is never computed


# -- 11: an admission that fails leaves no trace ---------------------------------------------------


def test_a_failed_admission_rolls_everything_back():
    """Its cached prefix was looked up in vain; nothing is charged, counted or held for that."""
    world = World(
        config(num_blocks=30, kv_reserve=0.0, policy=PolicyConfig(cached_prompt_cost=0.5))
    )
    prefix = list(range(100, 148))
    world.submit("b", prefix, 2)
    world.run()
    world.submit("a", 300, 120)
    for _ in range(6):
        world.step()
    (waits,) = world.submit("b", [*prefix, *range(200, 350)], 5)
    state = world.scheduler._state
    world.step()
    cached, charged = state.ledger.cached, len(world.charges())
    counter = state.tree.find(("b",)).counter
    for _ in range(20):
        world.step()
    assert [e.cause for e in world.of(FlowStalled) if e.sequence == waits] == [Stall.KV_BLOCKS]
    assert waits not in admitted(world)
    assert state.tree.find(("b",)).counter == counter
    assert all(e.flow == ("a",) for e in world.charges()[charged:])
    assert state.ledger.cached == cached
    world.run()
    (entry,) = [e for e in world.of(SequenceAdmitted) if e.sequence == waits]
    hits = world.ended[waits].cached_tokens
    assert hits == entry.cached_tokens
    bill = sum(e.cost for e in world.charges() if e.flow == ("b",))
    assert bill == (48 + 2 * 2) + (0.5 * hits + (198 - hits) + 2 * 5)


@pytest.mark.parametrize("lag", [1024.0, 1e9])
def test_splitting_does_not_spare_a_tenant_when_memory_is_full(lag):
    """Equal tenants, one of eight identities: both give way alike and get the same service."""
    world = World(
        config(
            num_blocks=40,
            max_running=8,
            max_step_tokens=256,
            kv_reserve=0.0,
            kv_growth_deviations=0.0,
            prefix_cache=False,
            policy=replace(fair(lag), preemption="recompute"),
        )
    )
    owner = {}
    for number in range(40):
        owner |= dict.fromkeys(world.submit("whole", 40, 60), "whole")
        owner |= dict.fromkeys(world.submit(f"split/{number % 8}", 40, 60), "split")
    world.run()
    taken = Counter(owner[event.sequence] for event in world.of(SequencePreempted))
    assert min(taken.values()) > 10
    assert max(taken.values()) < 1.5 * min(taken.values())


def test_a_forced_preemption_is_told_once_and_overwrites_nothing():
    world = World(config(num_blocks=40, host_blocks=100, policy=PolicyConfig(preemption="swap")))
    (first,) = world.submit("a", 60, 30)
    world.submit("b", 60, 30)
    for _ in range(4):
        world.step()
    world.scheduler.preempt(first, world.clock.now())
    taken = world.scheduler.take_events()
    assert [type(event) for event in taken] == [SequencePreempted]
    assert taken[0].swapped_blocks > 0
    world.step()
    assert not world.of(SequencePreempted)


def test_no_preemption_is_for_a_waiter_of_the_same_flow():
    world = World(config(num_blocks=20, max_running=2, kv_reserve=0.0, policy=fair(20.0)))
    for _ in range(5):
        world.submit("a", 60, 60)
    world.run()
    assert all(e.reason is PreemptReason.KV_GROWTH for e in world.of(SequencePreempted))


def test_a_lagging_flow_gets_no_more_places_at_once_than_close_its_lag():
    """Its waiters' prompts count as they are let in: else their sum puts it as far ahead."""
    world = World(config(max_running=8, max_step_tokens=512, policy=fair(60.0)))
    for _ in range(12):
        world.submit("a", 4, 100)
    world.step()
    for _ in range(10):
        world.submit("b", 40, 50)
    while not (taken := world.of(SequencePreempted)):
        world.step()
    assert [(event.reason, event.billed) for event in taken] == [(PreemptReason.LAG, ("b",))]
    ahead, behind = (world.scheduler._state.tree.find((name,)) for name in "ba")
    assert ahead.counter - behind.counter < 40
    world.run()
    world.check_idle()


def test_a_bound_below_one_steps_cost_stops_nobody():
    """A step in flight is thrown away with its place: all would compute the same for ever."""
    policy = replace(fair(5.0), cost=CostConfig("device_time"), preemption="swap")
    world = World(config(num_blocks=24, max_running=1, max_in_flight=2, policy=policy))
    for tenant in "abcabc":
        world.submit(tenant, 40, 30)
    world.run()
    world.check_idle()
    assert len(world.ended) == 6
