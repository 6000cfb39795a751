"""Who pays for what preemption makes to be computed or moved twice, recounted from events alone."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.commands import Abort
from engine.core.preempt import preempt
from engine.sim.profile import A10G_LLAMA2_7B, CostProfile, HostLink
from policies.config import PREEMPTIONS, PolicyConfig
from policies.cost import CostConfig
from policies.fairness.config import FairnessConfig
from telemetry.billing_events import ServiceCharged
from telemetry.events import (
    Cause,
    FlowLifted,
    PreemptMode,
    PreemptReason,
    SequenceAdmitted,
    SequenceArrived,
    SequenceEnded,
    SequencePreempted,
    StepCommitted,
    StepPlanned,
)
from tests.kernel.memory import CheckingExecutor
from tests.kernel.world import VOCABULARY, World, config

Flow = tuple[str, ...]


class Recount:
    """Rework by payer, told from events: what was planned before is planned again.

    `at` is how far a sequence is planned, `landed` how far of that its steps are back, `reached`
    how far it ever was planned, `payers` whom each of its positions was last taken for.
    """

    def __init__(self, events) -> None:
        self.flow: dict[int, Flow] = {}
        self.at: dict[int, int] = {}
        self.landed: dict[int, int] = {}
        self.in_flight: dict[int, dict[int, int]] = {}
        self.reached: dict[int, int] = defaultdict(int)
        self.payers: dict[int, dict[int, Flow]] = defaultdict(dict)
        self.rework: Counter[Flow] = Counter()
        for event in events:
            self._apply(event)

    def _apply(self, event) -> None:
        match event:
            case SequenceArrived():
                self.flow[event.sequence] = event.flow
            case SequenceAdmitted():
                self.at[event.sequence] = event.cached_tokens
                self.landed[event.sequence] = event.cached_tokens
                self.reached[event.sequence] = max(
                    self.reached[event.sequence], event.cached_tokens
                )
            case SequencePreempted():
                taken = self.payers[event.sequence]
                taken.update(dict.fromkeys(range(self.at[event.sequence]), event.billed))
                self.at[event.sequence] = self.landed[event.sequence]
                for rows in self.in_flight.values():
                    rows.pop(event.sequence, None)
            case StepPlanned():
                self.in_flight[event.step] = {}
                for row in zip(event.sequences, event.starts, event.counts, strict=True):
                    self._compute(event.step, *row)
            case StepCommitted():
                self.landed.update(self.in_flight.pop(event.step))

    def _compute(self, step: int, sequence: int, start: int, count: int) -> None:
        for position in range(start, min(start + count, self.reached[sequence])):
            own = self.flow[sequence]
            self.rework[self.payers[sequence].get(position, own)] += 1
        self.at[sequence] = self.in_flight[step][sequence] = start + count
        self.reached[sequence] = max(self.reached[sequence], start + count)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("arrive"),
            st.sampled_from("abc"),
            st.integers(1, 90),
            st.integers(1, 60),
        ),
        st.tuples(st.just("steps"), st.integers(1, 15), st.none(), st.none()),
        st.tuples(st.just("abort"), st.integers(1, 25), st.none(), st.none()),
        st.tuples(st.just("preempt"), st.integers(1, 25), st.none(), st.none()),
    ),
    max_size=50,
)


def play(world: World, actions) -> None:
    for kind, first, prompt, output in actions:
        match kind:
            case "arrive":
                world.submit(first, prompt, output)
            case "steps":
                for _ in range(first):
                    world.step()
            case "abort":
                world.apply(Abort((first,), Cause.DISCONNECTED))
            case "preempt":
                world.scheduler.preempt(first, world.clock.now())
                world._collect()
    world.run()
    world.check_idle()


POLICIES = st.builds(
    PolicyConfig,
    fairness=st.builds(
        FairnessConfig,
        name=st.sampled_from(["fair", "fair", "vtc", "fcfs"]),
        max_lag=st.sampled_from([5.0, 30.0, 200.0]),
    ),
    cost=st.builds(CostConfig, name=st.sampled_from(["linear", "profiled", "device_time"])),
    preemption=st.sampled_from(PREEMPTIONS),
    pause=st.booleans(),
)


def check_rework(world: World) -> None:
    """Bills, steps and sequences tell the same amount, to the token, and the right payers."""
    billed: Counter[Flow] = Counter()
    for event in world.charges():
        billed[event.flow] += event.rework_tokens
    recount = Recount(world.events).rework
    assert +billed == +recount
    named: Counter[Flow] = Counter()
    for charged in world.of(ServiceCharged):
        for repeat in charged.repeats:
            named[repeat.tenant,] += repeat.tokens
    assert +named == +billed
    assert sum(e.recomputed_tokens for e in world.of(StepCommitted)) == billed.total()
    assert sum(e.recomputed_tokens for e in world.of(SequenceEnded)) == billed.total()


def check_holdups(world: World) -> None:
    """What steps wait for moves is billed to the nanosecond, by blocks, to whom KV moves for.

    Whoever had it moved out pays for bringing it back.
    """
    flow = {e.sequence: e.flow for e in world.of(SequenceArrived)}
    causer: dict[int, Flow] = {}
    moved: Counter[Flow] = Counter()
    waits: dict[int, Counter[Flow]] = {}
    stalls = {e.step: e.stall for e in world.of(StepCommitted)}
    for event in world.events:
        match event:
            case SequencePreempted():
                causer[event.sequence] = event.billed
                moved[event.billed] += event.swapped_blocks
            case SequenceAdmitted() if event.swapped_blocks:
                moved[causer.get(event.sequence, flow[event.sequence])] += event.swapped_blocks
            case StepPlanned():
                waits[event.step], moved = +moved, Counter()
            case ServiceCharged():
                blocks = waits.pop(event.step)
                billed = Counter()
                for holdup in event.holdups:
                    assert holdup.flow == (holdup.tenant,)
                    billed[holdup.flow] += holdup.duration
                stall = stalls[event.step]
                assert billed.total() == stall
                for payer, own in blocks.items():
                    assert billed[payer] == pytest.approx(stall * own / blocks.total(), abs=1)


def check_preemptions(world: World) -> None:
    """Each says why, for whom, how and at whose expense; the payer is who needed the room."""
    flow = {e.sequence: e.flow for e in world.of(SequenceArrived)}
    for event in world.of(SequencePreempted):
        assert event.beneficiary != event.sequence
        assert event.billed == flow[event.beneficiary or event.sequence]
        assert not (event.reason is PreemptReason.LAG and event.billed == flow[event.sequence])
        match event.mode:
            case PreemptMode.PAUSE:
                assert event.tokens_lost == event.blocks_freed == event.swapped_blocks == 0
            case PreemptMode.SWAP:
                assert event.tokens_lost == 0 < event.swapped_blocks
            case PreemptMode.RECOMPUTE:
                assert event.swapped_blocks == 0 <= event.tokens_lost


def check_moves(world: World) -> None:
    """Every block moved back was moved out before, for the same sequence."""
    outside: Counter[int] = Counter()
    for event in world.events:
        match event:
            case SequencePreempted():
                outside[event.sequence] += event.swapped_blocks
            case SequenceAdmitted():
                assert event.swapped_blocks <= outside[event.sequence]
                outside[event.sequence] = 0  # what was still cached is given up on the host


def check_counters(world: World) -> None:
    """A flow's counter is what it was charged and lifted: every advance was settled."""
    expected: dict[Flow, float] = defaultdict(float)
    for event in world.events:
        match event:
            case ServiceCharged():
                for bill in event.charges():
                    expected[bill.flow] += bill.cost
            case FlowLifted():
                expected[event.flow] += event.after - event.before
    for flow in world.scheduler._state.tree:
        assert flow.counter == pytest.approx(expected[flow.path], rel=1e-9, abs=1e-6)


@settings(max_examples=150, deadline=None)
@given(
    ACTIONS,
    POLICIES,
    st.integers(10, 24),  # blocks
    st.integers(1, 6),  # slots
    st.sampled_from([0, 5, 200]),  # host blocks
    st.sampled_from([1, 2]),  # steps in flight
    st.booleans(),  # prefix cache
    st.booleans(),  # moves run beside the computation
)
def test_the_sum_of_all_bills_is_the_sum_of_all_rework(
    actions, policy, blocks, slots, host_blocks, in_flight, prefix_cache, overlap
):
    kernel = config(
        num_blocks=blocks,
        max_running=slots,
        kv_reserve=0.0,
        host_blocks=host_blocks,
        max_in_flight=in_flight,
        prefix_cache=prefix_cache,
        policy=policy,
        host_overlap=overlap,
    )
    world = World(kernel)
    profile = replace(A10G_LLAMA2_7B, link=HostLink(2e8, overlap=overlap))
    world.use(CheckingExecutor(VOCABULARY, world.clock.advance, profile))
    play(world, actions)
    check_rework(world)
    check_holdups(world)
    check_preemptions(world)
    check_moves(world)
    check_counters(world)


def lagging(preemption: str, profile: CostProfile = A10G_LLAMA2_7B, **kernel) -> World:
    """`a` fills the memory, then `b` needs some of it."""
    fairness = FairnessConfig("fair", max_lag=100.0)
    policy = PolicyConfig(fairness=fairness, preemption=preemption)
    defaults = {"num_blocks": 17, "kv_reserve": 0.0, "prefix_cache": False, "policy": policy}
    world = World(config(**(defaults | kernel)), profile=profile)
    for _ in range(4):
        world.submit("a", 40, 60)
    for _ in range(20):
        world.step()
    world.submit("b", 60, 10)
    world.run()
    world.check_idle()
    return world


def test_whoever_lags_pays_for_the_recompute_it_causes_and_the_victim_does_not():
    world = lagging("recompute")
    taken = [e for e in world.of(SequencePreempted) if e.reason is PreemptReason.LAG]
    assert taken
    assert all(e.billed == ("b",) and e.beneficiary == 5 for e in taken)
    rework = Counter()
    for event in world.charges():
        rework[event.flow] += event.rework_tokens
    assert rework["b",] == sum(e.tokens_lost for e in taken) > 0


def test_every_block_moved_out_for_somebody_is_moved_back_on_the_record():
    world = lagging("swap", host_blocks=40)
    taken = world.of(SequencePreempted)
    out = Counter()
    for event in taken:
        out[event.billed] += event.swapped_blocks
    assert out["b",] > 0
    assert sum(e.swapped_blocks for e in world.of(SequenceAdmitted)) == out.total()
    assert sum(e.rework_tokens for e in world.charges()) == 0


def test_whoever_made_kv_leave_pays_for_the_time_that_steps_wait_for_it_both_ways():
    """`x` gives way to `y`; each way it is 16 tokens of 512 KiB a block at 12 GB/s."""
    profile = replace(A10G_LLAMA2_7B, link=HostLink(overlap=False))
    policy = PolicyConfig(preemption="swap")
    kernel = config(max_running=1, host_blocks=40, prefix_cache=False, policy=policy)
    world = World(kernel, profile=profile)
    (x,) = world.submit("x", 90, 9)
    (y,) = world.submit("y", 10, 9)
    for _ in range(3):
        world.step()
    state = world.scheduler._state
    now = world.clock.now()
    preempt(state, state.sequences[x], PreemptReason.KV_GROWTH, state.sequences[y], now)
    world.run()
    (taken,) = world.of(SequencePreempted)
    waits = [e.holdups for e in world.of(ServiceCharged) if e.holdups]
    each = pytest.approx(taken.swapped_blocks * 16 * 524_288 / 12, abs=2)
    assert [len(holdups) for holdups in waits] == [1, 1]
    assert {(h.flow, h.tenant) for (h,) in waits} == {(("y",), "y")}
    assert [h.duration for (h,) in waits] == [each, each]
    check_holdups(world)


def test_the_causer_is_charged_when_it_takes_not_when_the_work_is_done_again():
    """So that the decision after the next already knows, and taking does not pay for itself."""
    policy = PolicyConfig(fairness=FairnessConfig("fair", max_lag=300.0), preemption="recompute")
    world = World(config(num_blocks=20, kv_reserve=0.0, prefix_cache=False, policy=policy))
    for _ in range(4):
        world.submit("a", 40, 60)
    for _ in range(20):
        world.step()
    world.submit("b", 60, 10)
    tree = world.scheduler._state.tree
    while not world.of(SequencePreempted):
        before = tree.find(("b",)).counter
        world.step()
    lost = sum(e.tokens_lost for e in world.of(SequencePreempted))
    own = next(e for e in reversed(world.charges()) if e.flow == ("b",))
    assert tree.find(("b",)).counter == before + lost + own.cost
    assert own.rework_tokens == 0


def test_each_of_two_causers_pays_for_its_own_part():
    """`x` loses all to `y`, is half way back when it loses that to `z`: `y` still owes the rest."""
    world = World(config(max_running=2, max_step_tokens=32, min_chunk=8, prefix_cache=False))
    (x,) = world.submit("x", 90, 5)
    for _ in range(4):
        world.step()
    state = world.scheduler._state

    def take_for(tenant: str) -> None:
        (other,) = world.submit(tenant, 10, 1)
        preempt(
            state,
            state.sequences[x],
            PreemptReason.KV_GROWTH,
            state.sequences[other],
            world.clock.now(),
        )
        world._collect()

    reached = state.batch.scheduled[state.sequences[x].slot]
    take_for("y")
    while state.sequences[x].slot < 0 or state.batch.scheduled[state.sequences[x].slot] < 30:
        world.step()
    half = int(state.batch.scheduled[state.sequences[x].slot])
    take_for("z")
    world.run()
    rework = Counter()
    for event in world.charges():
        rework[event.flow] += event.rework_tokens
    assert 30 <= half < reached
    assert +rework == {("y",): reached, ("z",): half}
    check_rework(world)


def test_what_is_found_in_the_cache_again_is_not_billed():
    world = lagging("recompute", prefix_cache=True)
    lost = sum(e.tokens_lost for e in world.of(SequencePreempted))
    assert 0 < sum(e.rework_tokens for e in world.charges()) < lost
    check_rework(world)
    check_counters(world)


def test_a_shared_prompt_begun_again_by_a_sibling_is_billed_to_the_causer():
    """The choice that computed the prompt loses its place; the next one starts over."""
    world = World(config(max_running=2, max_step_tokens=32, min_chunk=8, prefix_cache=False))
    leader, _ = world.submit("a", 80, 3, n=2)
    world.step()
    (other,) = world.submit("b", 10, 1)
    state = world.scheduler._state
    preempt(
        state,
        state.sequences[leader],
        PreemptReason.LAG,
        state.sequences[other],
        world.clock.now(),
    )
    world.run()
    rework = Counter()
    for event in world.charges():
        rework[event.flow] += event.rework_tokens
    assert rework["b",] > 0
    assert rework["a",] == 0
    check_counters(world)
