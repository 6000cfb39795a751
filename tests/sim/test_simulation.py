"""The driver: arrivals, latencies, true lengths, and time that passes."""

import pytest

from engine.sim.profile import A10G_LLAMA2_7B, UNIT_TIME
from loadgen.record import Fate
from loadgen.scenario import Returns
from loadgen.simulation import Rules, Simulation, StuckError
from loadgen.workload import Request, Workload
from policies.admission import AdmissionConfig
from policies.config import PolicyConfig
from telemetry.events import Cause, StepPlanned
from telemetry.units import SECOND
from tests.sim.runs import FCFS, kernel, simulate, workload


def fates(simulation: Simulation) -> list[Fate]:
    return list(simulation.recorder.fates.values())


def test_latency_counts_from_the_real_arrival_though_the_kernel_learns_of_it_at_a_step_boundary():
    first, second = fates(simulate([(0.0, "a", 1, 5), (1.25, "a", 1, 2)], profile=UNIT_TIME))
    assert first.ended == 5 * SECOND
    assert second.request.arrival == 1.25 * SECOND
    assert second.arrived == 2 * SECOND
    assert second.first_token == 3 * SECOND


def test_the_clock_jumps_over_idle_time():
    early, late = fates(simulate([(0.5, "a", 1, 2), (1000.25, "b", 1, 1)], profile=UNIT_TIME))
    assert early.arrived == 0.5 * SECOND
    assert (late.arrived, late.ended) == (1000.25 * SECOND, 1001.25 * SECOND)


@pytest.mark.parametrize("lengths", ["declared", "unknown"])
def test_a_request_ends_at_its_true_length_whether_it_is_declared_or_not(lengths):
    rules = Rules(lengths=lengths, cap=50)
    (fate,) = fates(simulate([(0.0, "a", 10, 7)], rules=rules))
    assert fate.output_tokens == 7
    assert fate.cause is (Cause.LENGTH if lengths == "declared" else Cause.STOP)


def test_an_unknown_length_ends_at_the_cap():
    (fate,) = fates(simulate([(0.0, "a", 10, 99)], rules=Rules(lengths="unknown", cap=50)))
    assert (fate.output_tokens, fate.cause) == (50, Cause.LENGTH)


def test_the_published_profile_gives_the_hand_computed_time():
    """Prompt of 100, then decodes over contexts of 101 and 102 tokens."""
    (fate,) = fates(simulate([(0.0, "a", 100, 3)]))
    first = 35.84 + 0.21314 * 100 + 2
    decodes = 2 * (16.295 + 0.245 + 2) + 0.002018 * (101 + 102)
    assert fate.first_token == pytest.approx(first * 1e6, abs=2)
    assert fate.ended == pytest.approx((first + decodes) * 1e6, abs=5)


def test_a_run_may_stop_before_all_is_done():
    simulation = simulate([(0.0, "a", 1, 50)], profile=UNIT_TIME, rules=Rules(until=10 * SECOND))
    assert simulation.clock.now() == 10 * SECOND
    assert fates(simulation)[0].ended is None


def test_the_same_seed_gives_the_same_run_and_every_event_is_watched():
    seen = []
    rows = [(i * 0.05, "ab"[i % 2], 20 + i, 5 + i % 7) for i in range(40)]
    one = Simulation(workload(rows), kernel(), A10G_LLAMA2_7B, Rules(), watch=seen.extend)
    one.run()
    two = simulate(rows)
    assert fates(one) == fates(two)
    assert sum(isinstance(e, StepPlanned) for e in seen) == two.recorder.totals.steps


def test_deadlines_are_absolute_and_end_waiting_work():
    requests = (
        Request(0, 0, 1, 10),
        Request(0, 0, 1, 1, first_token_deadline=int(4.5 * SECOND), origin=1),
    )
    flows = workload([(0, "a", 1, 1)]).flows
    lenient = AdmissionConfig(mode="accept", drop_hopeless=False)
    policy = PolicyConfig(fairness=FCFS, ordering="fcfs", admission=lenient)
    config = kernel(policy, max_running=1)
    simulation = Simulation(Workload(flows, requests), config, UNIT_TIME, Rules())
    simulation.run()
    late = fates(simulation)[1]
    assert late.first_token is None
    assert (late.cause, late.ended) == (Cause.FIRST_TOKEN_DEADLINE, 5 * SECOND)


def test_a_refused_request_returns_once_at_the_hint():
    """The tenant's queue holds one; the third request is refused and told when to come back."""
    rows = [(0.0, "a", 1, 5), (0.5, "a", 1, 5), (0.75, "a", 1, 1)]
    config = kernel(PolicyConfig(fairness=FCFS), max_running=1, tenant_queued_requests=1)
    rules = Rules(returns=Returns(most=1, jitter=0.0))
    simulation = simulate(rows, config, profile=UNIT_TIME, rules=rules)
    _, _, refused, again = fates(simulation)
    assert refused.cause is Cause.QUEUE_FULL
    assert again.request.attempt == 1
    assert again.request.origin == refused.request.origin
    assert again.request.arrival == refused.ended + refused.retry_after


def test_work_that_nothing_can_move_is_an_error(monkeypatch):
    simulation = Simulation(workload([(0.0, "a", 1, 1)]), kernel(), UNIT_TIME, Rules())
    monkeypatch.setattr(simulation.scheduler, "plan", lambda _now: None)
    with pytest.raises(StuckError, match="1 waiting"):
        simulation.run()
