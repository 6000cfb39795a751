"""Deadlines judged at arrival, hopeless and urgent waiters, full queues, and promises kept."""

import pytest

from engine.core.config import KernelConfig
from engine.sim.profile import A10G_LLAMA2_7B, CostProfile
from policies.admission import AdmissionConfig
from policies.config import PolicyConfig
from policies.promises import PromiseConfig
from telemetry.admission_events import (
    DeadlineInfeasible,
    PromiseBooked,
    PromiseClaimed,
    PromiseLapsed,
    SequenceDisplaced,
)
from telemetry.events import (
    Cause,
    PreemptReason,
    SequenceAdmitted,
    SequenceEnded,
    SequencePreempted,
    StepPlanned,
)
from telemetry.units import SECOND
from tests.kernel.world import World, config


def kernel(
    admission: AdmissionConfig | None = None, ordering: str = "fcfs", **changes
) -> KernelConfig:
    policy = PolicyConfig(admission=admission or AdmissionConfig(), ordering=ordering)
    return config(policy=policy, max_running=4, **changes)


def learned(
    admission: AdmissionConfig | None = None, *, profile: CostProfile = A10G_LLAMA2_7B, **changes
) -> World:
    """A world that has seen enough steps and ends to predict, and is idle again."""
    world = World(kernel(admission, **changes), profile=profile)
    for number in range(64):
        world.submit("past", 10 + number % 7, 20 + number % 5)
        for _ in range(5):
            world.step()
    world.run()
    return world


def backlog(world: World, tenant: str = "a", waiting: int = 20, **fields) -> list[int]:
    """The batch is full, and so many wait."""
    numbers = [world.submit(tenant, 20, 60, **fields)[0] for _ in range(4)]
    while world.scheduler.running < 4:
        world.step()
    return numbers + [world.submit(tenant, 20, 60, **fields)[0] for _ in range(waiting)]


def planned(world: World) -> set[int]:
    return {number for event in world.of(StepPlanned) for number in event.sequences}


def cause(world: World, number: int) -> Cause:
    return world.ended[number].cause


def first_token_due(world: World, seconds: float) -> dict[str, int]:
    return {"first_token_deadline": world.clock.now() + int(seconds * SECOND)}


def test_what_cannot_start_in_time_is_refused_at_once_with_what_was_predicted():
    world = learned()
    backlog(world)
    (late,) = world.submit("a", 20, 60, **first_token_due(world, 0.5))
    assert cause(world, late) is Cause.DEADLINE_INFEASIBLE
    (event,) = world.of(DeadlineInfeasible)
    assert (event.sequence, event.verdict, event.ground) == (late, "reject", "first_token")
    assert event.now < event.start < event.first_token < event.finish
    assert event.first_token > event.first_token_deadline
    forecast = world.ended[late].forecast
    assert event.start == event.now + int(forecast.start * SECOND)
    assert world.ended[late].retry_after > 0
    world.run()
    assert late not in planned(world)


def test_the_predicted_start_is_about_when_it_starts():
    """A burst of equal requests: each is predicted the wait that it then has, within a third."""
    world = learned()
    numbers = [world.submit("a", 20, 60)[0] for _ in range(4)]
    world.step()
    predicted = {}
    for _ in range(24):
        (number,) = world.submit("a", 20, 60, on_infeasible="partial", **completion(world, 1e-6))
        predicted[number] = world.ended[number].forecast.start
        numbers += world.submit("a", 20, 60)
    began = world.clock.now()
    world.run()
    starts = {e.sequence: (e.now - began) / SECOND for e in world.of(SequenceAdmitted)}
    waits = [(p, starts[n + 1]) for n, p in predicted.items()]
    late = [(p, actual) for p, actual in waits if actual > 1.0]
    assert len(late) > 10
    errors = [abs(p / actual - 1) for p, actual in late]
    assert sum(errors) / len(errors) < 0.35


def completion(world: World, seconds: float) -> dict[str, int]:
    return {"deadline": world.clock.now() + max(1, int(seconds * SECOND))}


def test_nothing_is_refused_on_a_guess():
    world = World(kernel())
    backlog(world)
    (number,) = world.submit("a", 20, 60, **first_token_due(world, 0.5))
    assert number not in world.ended


def test_time_to_wait_is_what_a_deadline_leaves_beside_the_longest_output():
    """The wait is over a twentieth of the deadline, so only a deadline that leaves room for the

    whole output cap of 60 tokens beside it can be kept for sure.
    """
    world = learned()
    backlog(world)
    (probe,) = world.submit("a", 20, 60, **completion(world, 1e-6))
    forecast = world.ended[probe].forecast
    assert forecast.start > 1.0
    tight = completion(world, forecast.start + 45 * forecast.token)
    far = completion(world, forecast.start + 70 * forecast.token)
    (refused,) = world.submit("a", 20, 60, on_infeasible="route", **tight)
    assert cause(world, refused) is Cause.DEADLINE_INFEASIBLE
    (ample,) = world.submit("a", 20, 60, **far)
    (capped,) = world.submit("a", 20, 9, **tight)
    assert ample not in world.ended
    assert capped not in world.ended


def test_goodput_keeps_the_last_of_the_memory_for_small_requests():
    """Some 420 of 640 tokens are in use: the rest is less than 4 x 71 and more than 4 x 21."""
    goodput = AdmissionConfig(mode="goodput", density=10.0, memory_slack=0.0)
    world = learned(goodput, num_blocks=40)
    for _ in range(3):
        world.submit("a", 140, 20)
    while world.scheduler.running < 3:
        world.step()
    due = first_token_due(world, 60.0)
    (large,) = world.submit("a", 70, 20, **due)
    (small,) = world.submit("a", 20, 20, **due)
    assert cause(world, large) is Cause.DEADLINE_INFEASIBLE
    assert [event.ground for event in world.of(DeadlineInfeasible)] == ["memory"]
    assert small not in world.ended


@pytest.mark.parametrize("choice", ["degrade", "partial", "accept", "reject", "route"])
def test_a_tenant_chooses_what_becomes_of_work_that_would_end_late(choice):
    world = learned()
    now = world.clock.now()
    (number,) = world.submit("a", 20, 400, deadline=now + SECOND, on_infeasible=choice)
    events = [(e.verdict, e.ground) for e in world.of(DeadlineInfeasible)]
    world.run()
    ended = world.ended[number]
    if choice == "reject":
        assert ended.cause is Cause.DEADLINE_INFEASIBLE
        assert events == [("reject", "completion")]
    elif choice == "route":
        assert ended.cause is Cause.DEADLINE_INFEASIBLE
        assert events == [("route", "completion")]
    elif choice == "degrade":
        assert ended.cause is Cause.LENGTH
        assert 10 < ended.output_tokens < 60
        assert events == [("degrade", "completion")]
        (event,) = world.of(DeadlineInfeasible)
        assert event.max_tokens == ended.output_tokens
    else:
        assert ended.cause is (Cause.PARTIAL if choice == "partial" else Cause.DEADLINE)
        assert ended.output_tokens > 10
        assert events == ([("partial", "completion")] if choice == "partial" else [])


def test_who_is_routed_elsewhere_is_promised_no_place_here():
    world = learned()
    backlog(world)
    due = first_token_due(world, 0.5)
    for choice, promises in (("route", 0), ("reject", 1)):
        (number,) = world.submit("a", 20, 60, on_infeasible=choice, **due)
        assert cause(world, number) is Cause.DEADLINE_INFEASIBLE
        assert len(world.of(PromiseBooked)) == promises


def test_tenants_of_one_server_choose_their_own_mode():
    world = learned(AdmissionConfig(mode="accept"))
    backlog(world)
    due = first_token_due(world, 0.5)
    (careful,) = world.submit("a", 20, 60, admission="feasible", **due)
    assert cause(world, careful) is Cause.DEADLINE_INFEASIBLE
    (default,) = world.submit("a", 20, 60, **due)
    assert default not in world.ended


def test_waiting_work_that_became_hopeless_is_given_up_before_its_deadline():
    world = learned(AdmissionConfig(mode="accept"))
    backlog(world)
    due = first_token_due(world, 1.0)
    choices = world.submit("a", 60, 5, n=3, **due)
    for _ in range(200):
        world.step()
    ends = [e for e in world.of(SequenceEnded) if e.sequence in choices]
    assert [end.cause for end in ends] == [Cause.RELEGATED] * 3
    assert {0 < due["first_token_deadline"] - end.now < SECOND / 4 for end in ends} == {True}
    world.run()
    assert not planned(world) & set(choices)


def test_urgent_work_takes_the_place_of_its_own_tenants_cheapest():
    world = learned(AdmissionConfig(mode="goodput"), num_blocks=128)
    running = [world.submit("b", 20, 300)[0], *(world.submit("a", 20, 300)[0] for _ in range(3))]
    for _ in range(3):
        world.step()
    (number,) = world.submit("a", 20, 5, **first_token_due(world, 0.5))
    world.run()
    (preempted,) = [e for e in world.of(SequencePreempted) if e.reason is PreemptReason.URGENT]
    assert preempted.sequence in running[1:]
    assert preempted.beneficiary == number
    assert preempted.billed == ("a",)
    assert cause(world, number) is Cause.LENGTH


@pytest.mark.parametrize("tenant", ["a", "c"])
def test_nobody_is_preempted_for_a_tenant_that_did_not_choose_so(tenant):
    mode = "feasible" if tenant == "a" else "goodput"
    world = learned(AdmissionConfig(mode=mode), num_blocks=128)
    for _ in range(4):
        world.submit("a", 20, 300)
    for _ in range(3):
        world.step()
    (number,) = world.submit(tenant, 20, 5, **first_token_due(world, 0.5))
    world.run()
    assert not [e for e in world.of(SequencePreempted) if e.reason is PreemptReason.URGENT]
    assert world.ended[number].output_tokens == 0


def test_a_full_queue_takes_the_last_waiter_of_the_flow_furthest_above_its_share():
    world = learned(max_queued_requests=20)
    heavy = backlog(world, "heavy", 20)
    (light,) = world.submit("light", 20, 5)
    (event,) = world.of(SequenceDisplaced)
    assert (event.sequence, event.flow) == (heavy[-1], ("heavy",))
    assert (event.beneficiary, event.beneficiary_flow) == (light, ("light",))
    ended = world.ended[heavy[-1]]
    assert (ended.cause, ended.promised) == (Cause.DISPLACED, True)
    assert ended.retry_after > 0
    (refused,) = world.submit("heavy", 20, 5)
    assert cause(world, refused) is Cause.SATURATED
    world.run()
    assert cause(world, light) is Cause.LENGTH
    world.check_idle()


def test_within_a_flow_the_last_in_line_gives_way():
    world = learned(ordering="edf", tenant_queued_requests=10)
    soon = backlog(world, "a", 10, deadline=world.clock.now() + 3000 * SECOND)
    (sooner,) = world.submit("a", 20, 5, deadline=world.clock.now() + 2000 * SECOND)
    assert cause(world, soon[-1]) is Cause.DISPLACED
    assert sooner not in world.ended
    (later,) = world.submit("a", 20, 5)
    assert cause(world, later) is Cause.QUEUE_FULL


def test_displacement_can_be_turned_off():
    world = learned(AdmissionConfig(displace=False), max_queued_requests=20)
    backlog(world, "heavy", 20)
    (light,) = world.submit("light", 20, 5)
    assert cause(world, light) is Cause.SATURATED


def refused_at_a_full_queue(world: World, **fields) -> int:
    backlog(world, "a", 10)
    (number,) = world.submit("a", 20, 60, **fields)
    assert cause(world, number) is Cause.QUEUE_FULL
    assert world.ended[number].promised
    return number


def pass_time(world: World, nanoseconds: int) -> None:
    until = world.clock.now() + nanoseconds
    while world.clock.now() < until:
        if not world.step():
            world.clock.advance_to(until)


def test_a_return_at_the_hint_is_let_in_before_fresh_arrivals():
    world = learned(tenant_queued_requests=10)
    number = refused_at_a_full_queue(world, claims=("task",))
    (booked,) = world.of(PromiseBooked)
    assert booked.sequence == number
    assert booked.due == booked.now + world.ended[number].retry_after
    pass_time(world, world.ended[number].retry_after)
    while world.scheduler.waiting > 9:
        world.step()
    for _ in range(9 - world.scheduler.waiting):
        world.submit("a", 20, 60)
    (fresh,) = world.submit("a", 20, 60)
    assert cause(world, fresh) is Cause.QUEUE_FULL  # the one place left is promised
    (again,) = world.submit("a", 20, 60, claims=("task",), retry=True)
    assert again not in world.ended
    (claimed,) = world.of(PromiseClaimed)
    assert (claimed.promise, claimed.sequence) == (booked.promise, again)
    world.run()
    assert cause(world, again) is Cause.LENGTH


def test_waits_grow_with_the_places_promised_already():
    world = learned(tenant_queued_requests=10)
    first = refused_at_a_full_queue(world)
    hints = [world.ended[first].retry_after]
    for _ in range(3):
        (number,) = world.submit("a", 20, 60)
        hints.append(world.ended[number].retry_after)
    assert [hint / hints[0] for hint in hints] == pytest.approx([1, 2, 3, 4], rel=0.01)


def test_who_comes_too_early_keeps_the_place():
    world = learned(tenant_queued_requests=10)
    refused_at_a_full_queue(world, claims=("key",))
    (booked,) = world.of(PromiseBooked)
    (early,) = world.submit("a", 20, 60, claims=("key",), retry=True)
    assert len(world.of(PromiseBooked)) == 1
    assert world.clock.now() + world.ended[early].retry_after == booked.due
    assert world.ended[early].promised


def test_places_of_those_who_stay_away_lapse_and_hold_nobody_up():
    world = learned(AdmissionConfig(promises=PromiseConfig(grace=0.5)), tenant_queued_requests=10)
    number = refused_at_a_full_queue(world, claims=("gone",))
    pass_time(world, world.ended[number].retry_after + SECOND)
    (fresh,) = world.submit("a", 20, 60)
    assert fresh not in world.ended
    (lapsed,) = world.of(PromiseLapsed)
    assert lapsed.flow == ("a",)
    (late,) = world.submit("a", 20, 60, claims=("gone",), retry=True)
    assert not world.of(PromiseClaimed)
    assert late not in world.ended


def test_promises_to_one_tenant_cost_others_nothing():
    world = learned(tenant_queued_requests=10)
    refused_at_a_full_queue(world, claims=("task",))
    for _ in range(10):
        (number,) = world.submit("b", 20, 60)
        assert number not in world.ended
