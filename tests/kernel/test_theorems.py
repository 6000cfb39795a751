"""Bounds on unfairness, proved on paper and checked here on the production scheduler.

A flow is backlogged while it has a waiting, paused or preempted sequence. `c` is a flow's virtual
counter; `W` its measured service, (wp·prompt tokens first computed + wq·output tokens) / weight,
from events alone. M is the KV pool in tokens, T `max_step_tokens`, R `max_running`.

VTC (Sheng et al., OSDI 2024), with `kv_admission` reserve and `kv_bypass_limit` 0, so that nothing
is preempted and nobody is passed. We charge a prompt as its chunks are computed, not at admission.
So after a flow's last admission, at which its counter is the smallest of all backlogged ones, it
can still be charged all that its resident sequences have left to compute, prompts included, and
those reserve at most M tokens together:

    U = max(wp, wq)·M / smallest weight
    Lemma 4.3    max c - min c <= U over backlogged flows
    Theorem 4.4  |W_f - W_g| <= 2U on any interval in which both are backlogged

`fair`, for siblings f (backlogged or running) and g (backlogged), one step in flight, nothing
computed twice (memory to spare, or host memory to swap to):

    S_f = (wp·T + wq·R) / weight of f          the most that one step charges f
    c_f - c_g <= max_lag / 2 + S_f             so |W_f - W_g| <= max_lag + S_f + S_g

For if f is further ahead than max_lag / 2 when a step is planned, it stands back from that step,
and if g has just come back, it starts no further behind than that. M is not in it. With two steps
in flight the counters lag by the one not landed: 2·S_f. Where KV is computed again, its causer is
charged for it, which is no service; a victim is taken only where the bill is at most half the lag,
so that long prompts may delay relief: c_f - c_g <= max(max_lag / 2, 2·bill) + S_f + bill, the bill
being for the head's blocks and one more sequence at most, 2·wp·max_context / weight.
"""

from collections import defaultdict
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.config import PolicyConfig
from policies.fairness.config import FairnessConfig
from telemetry.billing_events import ServiceCharged
from telemetry.events import (
    FlowLifted,
    SequenceAdmitted,
    SequenceArrived,
    SequenceEnded,
    SequencePreempted,
)
from tests.kernel.world import World, config

PROMPT, OUTPUT = 1.0, 2.0  # wp and wq
ROUNDING = 1e-6
FLOWS = ("a", "b", "c")


class Service:
    """W of every flow, and its widest swing between two flows while both are backlogged."""

    def __init__(self, weights: dict[str, float]) -> None:
        self.weights = weights
        self.served = dict.fromkeys(weights, 0.0)
        self.waiting: dict[str, set[int]] = {name: set() for name in weights}
        self.owner: dict[int, str] = {}
        self.spans: dict[tuple[str, str], list[float]] = {}
        self.widest: dict[tuple[str, str], float] = defaultdict(float)

    def fold(self, events) -> None:
        for event in events:
            match event:
                case SequenceArrived():
                    self.owner[event.sequence] = event.flow[0]
                    self.waiting[event.flow[0]].add(event.sequence)
                case SequencePreempted():
                    self.waiting[self.owner[event.sequence]].add(event.sequence)
                case SequenceAdmitted() | SequenceEnded():
                    self.waiting[self.owner[event.sequence]].discard(event.sequence)
                case ServiceCharged():
                    for bill in event.charges():
                        tokens = PROMPT * bill.prompt_tokens + OUTPUT * bill.output_tokens
                        self.served[bill.flow[0]] += tokens / self.weights[bill.flow[0]]
                case _:
                    continue  # nobody's service or waiting changed
            self._look()

    def _look(self) -> None:
        for pair in combinations(self.weights, 2):
            if not all(self.waiting[name] for name in pair):
                self.spans.pop(pair, None)
                continue
            gap = self.served[pair[0]] - self.served[pair[1]]
            low, high = self.spans.get(pair, (gap, gap))
            self.spans[pair] = [min(low, gap), max(high, gap)]
            self.widest[pair] = max(self.widest[pair], max(high, gap) - min(low, gap))


class Trial:
    """A world in which several flows ask for work, watched for how far they part."""

    def __init__(self, kernel: dict, policy: PolicyConfig, weights: tuple[float, ...]) -> None:
        self.world = World(config(policy=policy, **kernel))
        self.weights = dict(zip(FLOWS, weights, strict=False))
        self.service = Service(self.weights)
        self.tree = self.world.scheduler._state.tree
        self.ahead: dict[str, float] = defaultdict(float)  # most by which a flow led a backlogged
        self._seen = 0

    def ask(self, name: str, prompt: int, output: int) -> None:
        self.world.submit(name, prompt, output, weight=self.weights[name])
        self._look()

    def step(self) -> None:
        self.world.step()
        self._look()

    def _look(self) -> None:
        events = self.world.events
        self.service.fold(events[self._seen :])
        self._seen = len(events)
        least = min((flow.counter for flow in self.tree if flow.own), default=None)
        for flow in self.tree:
            if least is not None and (flow.own or flow.running):
                name = flow.path[0]
                self.ahead[name] = max(self.ahead[name], flow.counter - least)

    def play(self, requests) -> None:
        for name, prompt, output, steps in requests:
            if name in self.weights:
                self.ask(name, prompt, output)
                for _ in range(steps):
                    self.step()
        for _ in range(5000):
            self.step()
            if not self.world.scheduler.running + self.world.scheduler.waiting:
                return
        raise AssertionError("still busy")


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(FLOWS),
        st.integers(1, 150),  # prompt tokens
        st.integers(1, 120),  # output tokens
        st.sampled_from([0, 0, 0, 1, 4, 20]),  # steps until the next one comes
    ),
    min_size=4,
    max_size=40,
)
WEIGHTS = st.tuples(*[st.sampled_from([1.0, 2.0, 3.0])] * 3)


@settings(max_examples=50, deadline=None)
@given(REQUESTS, WEIGHTS, st.integers(17, 60), st.sampled_from([64, 200]))
def test_vtc_keeps_lemma_4_3_and_theorem_4_4(requests, weights, blocks, budget):
    policy = PolicyConfig(fairness=FairnessConfig("vtc"), kv_admission="reserve")
    kernel = {"num_blocks": blocks, "kv_bypass_limit": 0, "max_step_tokens": budget}
    trial = Trial(kernel, policy, weights)
    trial.play(requests)
    assert not trial.world.of(SequencePreempted)
    bound = max(PROMPT, OUTPUT) * blocks * 16 / min(weights)
    assert max(trial.ahead.values()) <= bound + ROUNDING
    assert max(trial.service.widest.values(), default=0.0) <= 2 * bound + ROUNDING


def step_charge(kernel: dict, weight: float) -> float:
    """S: the most that one step can charge a flow."""
    return (PROMPT * kernel["max_step_tokens"] + OUTPUT * kernel["max_running"]) / weight


def check_fair(trial: Trial, kernel: dict, max_lag: float, steps_charged: int = 1) -> None:
    charge = {
        name: steps_charged * step_charge(kernel, weight) for name, weight in trial.weights.items()
    }
    for name, ahead in trial.ahead.items():
        assert ahead <= max_lag / 2 + charge[name] + ROUNDING, name
    if steps_charged == 1:
        for (f, g), swing in trial.service.widest.items():
            assert swing <= max_lag + charge[f] + charge[g] + ROUNDING, (f, g)


@settings(max_examples=50, deadline=None)
@given(
    REQUESTS,
    WEIGHTS,
    st.sampled_from([8, 12, 32]),
    st.sampled_from([0, 40, 400]),  # tokens of a step beyond one a slot and a chunk
    st.sampled_from([40.0, 200.0, 800.0]),
    st.sampled_from([(20, 2000), (40, 2000), (2000, 0)]),  # device and host blocks
    st.booleans(),
    st.sampled_from([1, 2]),
)
def test_fair_keeps_its_bound(requests, weights, slots, more, max_lag, memory, pause, in_flight):
    """Whatever the weights and lengths, with memory to spare or with host memory to swap to."""
    kernel = {
        "num_blocks": memory[0],
        "host_blocks": memory[1],
        "max_running": slots,
        "max_step_tokens": slots + 8 + more,
        "max_in_flight": in_flight,
    }
    fairness = FairnessConfig("fair", max_lag=max_lag)
    policy = PolicyConfig(fairness=fairness, preemption="swap", pause=pause or not memory[1])
    trial = Trial(kernel, policy, weights)
    trial.play(requests)
    trial.world.check_idle()
    check_fair(trial, kernel, max_lag, steps_charged=in_flight)


@settings(max_examples=25, deadline=None)
@given(REQUESTS, WEIGHTS, st.integers(17, 40), st.sampled_from([40.0, 200.0, 800.0]))
def test_fair_keeps_its_bound_where_kv_is_computed_again(requests, weights, blocks, max_lag):
    kernel = {"num_blocks": blocks, "max_running": 8, "max_step_tokens": 64}
    fairness = FairnessConfig("fair", max_lag=max_lag)
    trial = Trial(kernel, PolicyConfig(fairness=fairness, preemption="recompute"), weights)
    trial.play(requests)
    longest = 150 + 120
    bill = 2 * PROMPT * longest / min(weights)
    bound = max(max_lag / 2, 2 * bill) + step_charge(kernel, min(weights)) + bill
    assert max(trial.ahead.values()) <= bound + ROUNDING


@pytest.mark.parametrize("slots", [8, 24, 64])
@pytest.mark.parametrize(
    "lengths", [((1, 5), (80, 120)), ((5, 300), (1, 60)), ((200, 300), (1, 5))]
)
@pytest.mark.parametrize("memory", ["ample", "tight"])
@pytest.mark.parametrize("max_lag", [60.0, 300.0])
def test_weights_3_to_1_whatever_the_lengths_and_slots(slots, lengths, memory, max_lag):
    kernel = {
        "num_blocks": 4000 if memory == "ample" else 4 * slots,
        "host_blocks": 4000,
        "max_running": slots,
        "max_step_tokens": slots + 64,
    }
    policy = PolicyConfig(fairness=FairnessConfig("fair", max_lag=max_lag))
    trial = Trial(kernel, policy, (3.0, 1.0))
    trial.world.scheduler.verify = lambda: None  # the laws have tests of their own
    (shortest, longest), (least, most) = lengths
    for number in range(6 * slots):  # lengths that differ, the same for both
        prompt = shortest + number * 37 % (longest - shortest + 1)
        output = least + number * 11 % (most - least + 1)
        trial.ask("a", prompt, output)
        trial.ask("b", prompt, output)
    for _ in range(150):
        trial.step()
    assert trial.world.scheduler.waiting > 0
    check_fair(trial, kernel, max_lag)
    assert trial.service.widest["a", "b"] <= max_lag + step_charge(kernel, 1.0)


def gap_after_a_burst(name: str, blocks: int) -> float:
    """`a` fills the pool with long outputs; then `b` comes, and both want more."""
    slots = 4 * blocks // 10
    kernel = {"num_blocks": blocks, "max_running": slots, "max_step_tokens": slots + 64}
    policy = PolicyConfig(
        fairness=FairnessConfig(name, max_lag=100.0),
        kv_admission="reserve",
        preemption="swap",
    )
    trial = Trial(kernel | {"host_blocks": 1000, "kv_bypass_limit": 0}, policy, (1.0, 1.0))
    for _ in range(2 * slots):
        trial.ask("a", 2, 36)
    for _ in range(3):
        trial.step()
    for _ in range(2 * slots):
        trial.ask("b", 2, 36)
    for _ in range(60):
        trial.step()
    return max(trial.ahead.values())


def test_without_preemption_the_gap_grows_with_the_pool_and_with_it_it_does_not():
    """Theorem 4.8 of the paper: non-preemptive schedulers can be made to part by wq·M."""
    small, large = gap_after_a_burst("vtc", 40), gap_after_a_burst("vtc", 160)
    assert large > 3.5 * small > 3.5 * 0.6 * OUTPUT * 40 * 16
    for blocks in (40, 160):
        slots = 4 * blocks // 10
        assert gap_after_a_burst("fair", blocks) <= 50.0 + (slots + 64) + OUTPUT * slots


def test_a_flow_that_returns_starts_within_the_bound_of_those_that_run():
    """Its idle time saves up no more than half of `max_lag`, though nobody waits to be followed."""
    policy = PolicyConfig(fairness=FairnessConfig("fair", max_lag=200.0))
    trial = Trial({"max_running": 1, "num_blocks": 200}, policy, (1.0, 1.0))
    trial.ask("b", 1, 1)
    trial.step()
    trial.ask("a", 10, 400)
    for _ in range(300):
        trial.step()
    trial.ask("b", 10, 5)
    lead = trial.tree.find(("a",)).counter - trial.tree.find(("b",)).counter
    assert lead == 100.0
    assert trial.world.of(FlowLifted)[-1].after == trial.tree.find(("b",)).counter


def test_what_was_served_while_nobody_waited_is_not_held_against_anyone():
    policy = PolicyConfig(fairness=FairnessConfig("fair", max_lag=200.0))
    trial = Trial({"max_running": 2, "num_blocks": 200}, policy, (1.0, 1.0))
    trial.ask("b", 10, 2)
    trial.ask("a", 10, 400)  # both run at once; `a` alone for long
    for _ in range(450):
        trial.step()
    for name in ("b", "b", "b", "a"):
        trial.ask(name, 10, 50)
    counters = [trial.tree.find((name,)).counter for name in ("a", "b")]
    assert counters[0] - counters[1] == 100.0
