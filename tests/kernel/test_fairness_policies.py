"""Every fairness policy through the production scheduler: one suite for all, then each its own."""

from math import inf

import pytest

from engine.core.commands import Abort
from policies.config import ORDERINGS, PolicyConfig
from policies.cost import NAMES as COSTS
from policies.cost import CostConfig
from policies.fairness.config import NAMES, FairnessConfig
from telemetry.events import (
    Cause,
    PreemptMode,
    SequenceAdmitted,
    SequencePreempted,
)
from tests.kernel.memory import CheckingExecutor
from tests.kernel.world import VOCABULARY, World, config


def world_with(name: str = "fair", *, kernel: dict | None = None, **fairness) -> World:
    policy = PolicyConfig(fairness=FairnessConfig(name=name, **fairness))
    world = World(config(**({"policy": policy} | (kernel or {}))))
    world.use(CheckingExecutor(VOCABULARY, world.clock.advance))
    return world


def admitted(world: World) -> list[int]:
    return [e.sequence for e in world.of(SequenceAdmitted) if not e.resumed]


# -- what every policy promises -------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_everything_submitted_ends_and_everything_comes_back(name):
    world = world_with(name, kernel={"num_blocks": 24, "max_running": 3})
    for i in range(24):
        world.submit("abc"[i % 3], 5 + 9 * (i % 7), 3 + i % 9, n=1 + i % 2)
    world.run()
    world.check_idle()
    assert {finished.cause for finished in world.ended.values()} == {Cause.LENGTH}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "rpm"])
def test_an_unused_share_is_borrowed(name):
    """Work-conserving: alone, a tenant gets every slot, whatever its weight."""
    world = world_with(name, kernel={"max_running": 4})
    for _ in range(4):
        world.submit("a", 10, 10, weight=0.1)
    world.submit("a", 10, 10, weight=0.1)
    world.step()
    assert world.scheduler.running == 4


@pytest.mark.parametrize("name", NAMES)
def test_the_same_history_is_decided_the_same_way(name):
    runs = []
    for _ in range(2):
        world = world_with(name, kernel={"max_running": 2})
        for i in range(12):
            world.submit("abc"[i % 3], 10 + i, 5)
        world.run()
        runs.append(world.events)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", NAMES)
def test_service_is_charged_for_partial_work_too(name):
    world = world_with(name)
    (number,) = world.submit("a", 40, 50)
    for _ in range(4):
        world.step()
    cost = sum(e.cost for e in world.charges())
    prepaid = {"vtc_oracle": 50}.get(name, 0)
    assert cost == 40 + (0 if prepaid else 2 * 4)
    assert sum(e.output_tokens for e in world.charges()) == 4
    assert number in world.tokens


@pytest.mark.parametrize("cost", COSTS)
def test_two_equal_tenants_share_equally_under_every_cost(cost):
    policy = PolicyConfig(cost=CostConfig(cost))
    world = World(config(max_running=4, policy=policy, num_blocks=200))
    for _ in range(30):
        world.submit("a", 30, 20)
        world.submit("b", 30, 20)
    for _ in range(300):
        world.step()
    served = {"a": 0, "b": 0}
    for event in world.charges():
        served[event.flow[0]] += event.output_tokens
    assert served["a"] == pytest.approx(served["b"], rel=0.1)


# -- what single policies promise ------------------------------------------------------------------


def test_fcfs_serves_by_arrival_whoever_floods():
    world = world_with("fcfs", kernel={"max_running": 1})
    flood = [world.submit("a", 10, 5)[0] for _ in range(6)]
    (late,) = world.submit("b", 10, 5)
    world.run()
    assert admitted(world) == [*flood, late]


def test_vtc_serves_the_least_served_first():
    world = world_with("vtc", kernel={"max_running": 1})
    flood = [world.submit("a", 10, 5)[0] for _ in range(6)]
    (late,) = world.submit("b", 10, 5)
    world.run()
    assert admitted(world) == [flood[0], late, *flood[1:]]


def test_lcf_lets_an_idle_flow_spend_what_it_saved_up():
    orders = {}
    for name in ("vtc", "lcf"):
        world = world_with(name, kernel={"max_running": 1})
        for _ in range(8):
            world.submit("a", 10, 20)
        for _ in range(100):  # a alone, for five of its requests
            world.step()
        for _ in range(3):
            world.submit("b", 10, 20)
        world.run()
        orders[name] = ["a" if n <= 8 else "b" for n in admitted(world)[5:]]
    assert orders["lcf"][:3] == ["b", "b", "b"]
    assert orders["vtc"][:3] != ["b", "b", "b"]


def test_rpm_holds_a_flow_back_though_nobody_else_wants_the_engine():
    world = world_with("rpm", requests_per_minute=2)
    for _ in range(5):
        world.submit("a", 10, 2)
    world.run()
    starts = [e.now // 60_000_000_000 for e in world.of(SequenceAdmitted)]
    assert starts == [0, 0, 1, 1, 2]


def test_predictions_are_charged_at_admission_and_settled_at_the_end():
    world = world_with("vtc_oracle", kernel={"max_running": 1})
    world.submit("a", 10, 30)
    world.step()
    tree = world.scheduler._state.tree
    assert tree.find(("a",)).counter == 10 + 2 * 30
    world.run()
    assert tree.find(("a",)).counter == 10 + 2 * 30


def test_a_prediction_too_high_is_refunded():
    world = world_with("vtc_predict", kernel={"max_running": 1})
    world.submit("a", 10, 30)
    world.run()
    (number,) = world.submit("a", 10, 30)
    world.step()
    tree = world.scheduler._state.tree
    assert tree.find(("a",)).counter == (10 + 60) + (10 + 60)
    world.apply(Abort((number,), Cause.DISCONNECTED))
    assert tree.find(("a",)).counter == (10 + 60) + (10 + 2)


def test_dlpm_prefers_cached_prefixes_within_the_deficit():
    world = world_with("dlpm", kernel={"max_running": 1}, quantum=200.0)
    prefix = list(range(100, 148))
    world.submit("a", prefix, 2)
    world.run()
    (cold,) = world.submit("b", 48, 2)
    (warm,) = world.submit("a", [*prefix, 5], 2)
    world.run()
    assert admitted(world)[1:] == [warm, cold]


def test_bounded_lag_takes_slots_from_the_most_served():
    """Without it, `b` waits until `a`'s long outputs end; with it, `a` gives way at the bound."""
    for bound, expect_pause in ((100.0, True), (inf, False)):
        world = world_with("fair", kernel={"max_running": 2}, max_lag=bound)
        for _ in range(4):
            world.submit("a", 10, 200)
        for _ in range(10):
            world.step()
        (waiting,) = world.submit("b", 10, 20)
        steps = 0
        while waiting not in world.ended:
            world.step()
            steps += 1
        paused = [e for e in world.of(SequencePreempted) if e.mode is PreemptMode.PAUSE]
        assert bool(paused) is expect_pause
        assert (steps < 80) is expect_pause
        world.run()
        world.check_idle()


def test_bounded_lag_swaps_when_memory_is_what_blocks():
    kernel = {
        "num_blocks": 16,
        "host_blocks": 32,
        "kv_reserve": 0.0,
        "prefix_cache": False,  # what is still cached need not be moved back
        "policy": PolicyConfig(fairness=FairnessConfig(max_lag=50.0)),
    }
    world = world_with(kernel=kernel)
    for _ in range(3):
        world.submit("a", 60, 60)
    for _ in range(20):
        world.step()
    (poor,) = world.submit("b", 60, 20)
    world.run()
    world.check_idle()
    moves = [e for e in world.of(SequencePreempted) if e.beneficiary == poor]
    assert moves
    assert all(e.mode is PreemptMode.SWAP and e.billed == ("b",) for e in moves)
    moved_out = sum(e.swapped_blocks for e in world.of(SequencePreempted))
    assert sum(e.swapped_blocks for e in world.of(SequenceAdmitted)) == moved_out
    assert sum(e.rework_tokens for e in world.charges()) == 0


def lag_in_every_step(world: World, steps: int) -> float:
    worst = 0.0
    tree = world.scheduler._state.tree
    for _ in range(steps):
        world.step()
        backlogged = [f for f in tree if f.own]
        if len(backlogged) > 1:
            counters = [f.counter for f in backlogged]
            worst = max(worst, max(counters) - min(counters))
    return worst


@pytest.mark.parametrize("lengths", [(5, 200), (200, 5), (60, 60)])
def test_backlogged_flows_stay_within_the_bound_and_one_step(lengths):
    """Our bound: half of max_lag plus what one step can charge; the KV pool's size is not in it."""
    prompt, output = lengths
    kernel = {"max_running": 8, "num_blocks": 400, "host_blocks": 400, "max_step_tokens": 256}
    policy = PolicyConfig(fairness=FairnessConfig(max_lag=150.0))
    world = World(config(**kernel, policy=policy))
    for _ in range(40):
        world.submit("gold", prompt, output, weight=3.0)
        world.submit("bronze", prompt, output, weight=1.0)
    one_step = 256 + 2 * 8
    assert lag_in_every_step(world, 500) <= 75.0 + one_step


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_every_ordering_serves_everybody(ordering):
    world = World(config(max_running=2, policy=PolicyConfig(ordering=ordering)))
    now = world.clock.now()
    for i in range(12):
        deadline = now + 10**12 * (1 + i % 3) if i % 2 else None
        world.submit("a", 5 + 7 * (i % 4), 3 + i, deadline=deadline)
    world.run()
    world.check_idle()
    assert {finished.cause for finished in world.ended.values()} == {Cause.LENGTH}


def test_sjf_serves_the_shortest_first():
    world = World(config(max_running=1, policy=PolicyConfig(ordering="sjf")))
    long, short, middle = (world.submit("a", 10, n)[0] for n in (50, 5, 20))
    world.run()
    assert admitted(world) == [short, middle, long]


def test_slack_counts_the_work_a_deadline_leaves_room_for():
    """The later deadline goes first when its prompt takes longer than the difference."""
    world = World(config(max_running=1, policy=PolicyConfig(ordering="slack"), max_context=512))
    world.submit("a", 60, 30)
    world.run()
    world.submit("a", 10, 30)
    world.step()
    now = world.clock.now()
    (small,) = world.submit("a", 10, 5, deadline=now + 30_000_000_000)
    (large,) = world.submit("a", 400, 5, deadline=now + 30_000_000_001)
    world.run()
    assert admitted(world)[2:] == [large, small]


def test_a_cold_request_is_passed_by_hot_ones_a_bounded_number_of_times():
    """Case 1: arrivals that hit the prefix cache do not keep a cold one waiting for ever."""
    policy = PolicyConfig(ordering="prefix")
    world = World(config(max_running=1, kv_bypass_limit=3, policy=policy))
    prefix = list(range(200, 248))
    world.submit("a", prefix, 2)
    world.run()
    world.submit("a", [*prefix, 1], 5)
    world.step()
    (cold,) = world.submit("a", 48, 2)
    hot = [world.submit("a", [*prefix, 2 + i], 2)[0] for i in range(8)]
    world.run()
    order = admitted(world)
    assert sum(order.index(n) < order.index(cold) for n in hot) == 3


def test_static_batches_wait_for_their_longest_member():
    world = World(config(max_running=2, policy=PolicyConfig(batching="static")))
    a, b, c = world.submit("x", 1, 8)[0], world.submit("x", 1, 2)[0], world.submit("x", 1, 3)[0]
    steps = world.run()
    assert steps == 8 + 3
    assert admitted(world) == [a, b, c]


def test_cached_prompt_tokens_count_for_their_share():
    """Product question: whether cached prompt work is charged."""
    prompt = list(range(100, 150))
    for share, expected in ((0.0, 2 + 4), (0.25, 2 + 12 + 4), (1.0, 2 + 48 + 4)):
        world = World(config(policy=PolicyConfig(cached_prompt_cost=share)))
        world.submit("a", prompt, 2)
        world.run()
        before = sum(e.cost for e in world.charges())
        world.submit("a", prompt, 2)
        world.run()
        assert sum(e.cost for e in world.charges()) - before == expected
