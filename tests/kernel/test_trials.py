"""An engine where nothing lives gets out of forecasts that have become wrong, by itself.

A machine was slow and is so no more; then all that is asked for has a deadline that the machine
can keep, and that would be missed if it were as slow as it was.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.commands import Abort
from engine.core.plan import Sampling
from policies.admission import AdmissionConfig
from policies.trials import BELIEF
from telemetry.admission_events import DeadlineInfeasible
from telemetry.events import Cause
from telemetry.units import SECOND
from tests.kernel.test_admission_control import kernel, learned
from tests.kernel.test_standstills import CAP, Machine
from tests.kernel.world import World

STOP = 7
IN_TIME = {Cause.LENGTH, Cause.STOP}


def slowed(times: float, seconds: float = 120, **admission) -> tuple[Machine, World]:
    """A world whose machine took so many `times` as long for minutes of overload, and is well and

    idle now. Queues were full, so paces, departures and promises were learned then, too.
    """
    machine = Machine()
    config = AdmissionConfig(**admission)
    world = learned(config, profile=machine, tenant_queued_requests=CAP)
    machine.slower = times
    until = world.clock.now() + seconds * SECOND
    while world.clock.now() < until:
        world.submit("a", 20, 60, claims=("all",))
        for _ in range(4):
            world.step()
    world.run()
    world.submit("a", 20, 5)
    world.run()
    machine.slower = 1.0
    return machine, world


def rest(world: World, seconds: float) -> None:
    world.clock.advance(int(seconds * SECOND))


def needed(prompt: int, output: int, side_by_side: int = 1) -> int:
    """Nanoseconds that so many calls take on a machine that is well."""
    world = World(kernel())
    began = world.clock.now()
    for _ in range(side_by_side):
        world.submit("a", prompt, output)
    world.run()
    return world.clock.now() - began


def ask(world: World, prompt: int, output: int, within: float, count: int = 1, **fields):
    """The causes with which `count` calls end that come now, due `within` nanoseconds."""
    due = world.clock.now() + int(within)
    asked = [world.submit("a", prompt, output, deadline=due, **fields)[0] for _ in range(count)]
    world.run()
    return [world.ended[number].cause for number in asked]


def verdicts(world: World) -> list[tuple[str, str]]:
    return [(event.verdict, event.ground) for event in world.of(DeadlineInfeasible)]


@given(st.floats(1.7, 12.0), st.integers(8, 300), st.integers(10, 60))
@settings(max_examples=12, deadline=None)
def test_after_two_calls_the_engine_takes_in_what_it_can_do(times, prompt, output):
    """The first one is in time already, and by the third they may come side by side again."""
    _, world = slowed(times)
    rest(world, 30)
    within = 1.4 * needed(prompt, output)
    for _ in range(2):
        assert ask(world, prompt, output, within)[0] in IN_TIME
        rest(world, 0.2)
    within = 1.4 * needed(prompt, output, 4)
    assert set(ask(world, prompt, output, within, count=4)) <= IN_TIME
    assert {verdict for verdict, _ in verdicts(world)} <= {"trial"}


def test_a_forecast_is_believed_for_a_while_and_then_tried_with_one_call():
    _, world = slowed(5.0)
    within = 1.4 * needed(20, 60)
    rest(world, BELIEF - 1)
    assert ask(world, 20, 60, within) == [Cause.DEADLINE_INFEASIBLE]
    rest(world, 1)
    trial, second = ask(world, 20, 60, within, count=2)
    assert (trial, second) == (Cause.LENGTH, Cause.DEADLINE_INFEASIBLE)
    assert verdicts(world) == [(v, "completion") for v in ("reject", "trial", "reject")]
    event = world.of(DeadlineInfeasible)[1]
    assert event.max_tokens == 60
    assert event.finish > event.deadline


def test_what_no_machine_could_do_stays_refused():
    _, world = slowed(5.0)
    rest(world, 3600)
    assert ask(world, 20, 60, SECOND / 1000) == [Cause.DEADLINE_INFEASIBLE]
    assert verdicts(world) == [("reject", "completion")]


def test_while_the_machine_is_still_slow_one_call_at_a_time_pays_for_it():
    machine, world = slowed(5.0)
    machine.slower = 5.0
    rest(world, 30)
    within = 1.4 * needed(20, 60)
    late = 0
    for _ in range(30):
        (cause,) = ask(world, 20, 60, within)
        late += cause is Cause.DEADLINE
        rest(world, 1)
    assert 2 <= late <= 4
    assert verdicts(world).count(("trial", "completion")) == late


def test_a_trial_that_its_caller_gave_up_says_nothing():
    _, world = slowed(5.0)
    rest(world, 30)
    within = 1.4 * needed(20, 60)
    due = world.clock.now() + int(within)
    (number,) = world.submit("a", 20, 60, deadline=due)
    for _ in range(5):
        world.step()
    world.apply(Abort((number,), Cause.DISCONNECTED))
    world.run()
    assert ask(world, 20, 60, within) == [Cause.DEADLINE_INFEASIBLE]
    rest(world, BELIEF)
    assert ask(world, 20, 60, within) == [Cause.LENGTH]


@pytest.mark.parametrize("choice", ["reject", "degrade", "partial", "accept"])
def test_what_would_not_even_start_in_time_is_tried_unless_it_is_taken_in_anyway(choice):
    _, world = slowed(8.0)
    rest(world, 30)
    within = 1.4 * needed(300, 2)
    assert ask(world, 300, 2, within, on_infeasible=choice) == [Cause.LENGTH]
    assert [verdict for verdict, _ in verdicts(world)] == ([] if choice == "accept" else ["trial"])


def test_what_has_somewhere_else_to_go_is_not_put_at_risk():
    _, world = slowed(5.0)
    rest(world, 30)
    causes = ask(world, 20, 60, 1.4 * needed(20, 60), on_infeasible="route")
    assert causes == [Cause.DEADLINE_INFEASIBLE]
    assert verdicts(world) == [("route", "completion")]


@pytest.mark.parametrize("choice", ["degrade", "partial"])
def test_what_is_taken_in_for_less_needs_no_trial_and_heals_as_well(choice):
    _, world = slowed(5.0)
    rest(world, 30)
    within = 1.4 * needed(20, 60)
    causes = [ask(world, 20, 60, within, on_infeasible=choice)[0] for _ in range(4)]
    assert set(causes) == {Cause.LENGTH}
    found = [verdict for verdict, _ in verdicts(world)]
    assert found
    assert set(found) == {choice}
    assert len(found) < 4
    assert len(world.tokens[max(world.tokens)]) == 60


def test_where_all_is_taken_in_what_looks_hopeless_is_tried_and_not_given_up():
    _, world = slowed(8.0, mode="accept")
    within = 1.4 * needed(300, 2)
    assert ask(world, 300, 2, within) == [Cause.LENGTH]
    assert verdicts(world) == [("trial", "completion")]
    rest(world, 3600)
    assert ask(world, 300, 2, SECOND / 1000) == [Cause.RELEGATED]


def test_short_calls_that_keep_coming_do_not_keep_long_ones_out():
    """They teach what a decode takes, and little of what a long prompt does."""
    machine = Machine()
    world = learned(profile=machine)
    machine.slower = 10.0
    for _ in range(60):
        world.submit("a", 300, 20)
        world.submit("a", 20, 20)
        world.run()
    machine.slower = 1.0
    within = 1.4 * needed(300, 20)
    causes = []
    for _ in range(12):
        for _ in range(4):
            world.submit("a", 2, 30)
            world.run()
            rest(world, 1)
        causes += ask(world, 300, 20, within)
    assert causes.count(Cause.LENGTH) >= 9
    assert set(causes[-8:]) == {Cause.LENGTH}


@pytest.mark.parametrize("cold", [1, 40])
def test_a_server_whose_first_calls_were_slow_is_not_shut_for_what_comes_then(cold):
    machine = Machine()
    world = World(kernel(), profile=machine)
    if cold == 1:
        machine.extra = 3 * SECOND
    else:
        machine.slower = 8.0
    for _ in range(cold):
        world.submit("a", 20, 20)
        world.run()
    machine.slower = 1.0
    within = 1.4 * needed(20, 20)
    assert ask(world, 20, 20, within) == [Cause.DEADLINE_INFEASIBLE]
    rest(world, BELIEF)
    assert [ask(world, 20, 20, within)[0] for _ in range(5)] == [Cause.LENGTH] * 5


class Talker:
    """Draws so many tokens before a stop."""

    length = 59

    def __call__(self, join, index: int) -> int:
        return STOP if index >= self.length else 1


def test_outputs_that_were_long_do_not_keep_out_those_that_are_not_any_more():
    talker = Talker()
    world = World(kernel(), draw=talker)
    stop = Sampling(temperature=0.0, stop_token_ids=(STOP,))
    for _ in range(60):
        world.submit("a", 20, 100, sampling=stop)
        world.run()
    talker.length = 5
    within = 1.4 * needed(20, 10)
    assert ask(world, 20, 100, within, sampling=stop) == [Cause.DEADLINE_INFEASIBLE]
    rest(world, BELIEF)
    for _ in range(20):
        assert ask(world, 20, 100, within, sampling=stop) == [Cause.STOP]
    assert "completion" in {ground for _, ground in verdicts(world)}


def test_a_gate_that_is_closed_to_everyone_is_tried_too():
    """At the prices of the slow machine, each call takes more than the load leaves for all."""
    _, world = slowed(10.0, mode="goodput", density_window=20)
    rest(world, 30)
    for _ in range(40):
        assert ask(world, 20, 60, SECOND / 1000) == [Cause.DEADLINE_INFEASIBLE]
        rest(world, 0.05)
    within = 1.4 * needed(20, 60)
    assert [ask(world, 20, 60, within)[0] for _ in range(10)] == [Cause.LENGTH] * 10
    assert verdicts(world)[39:41] == [("reject", "density"), ("trial", "density")]


@pytest.mark.parametrize("prompt", [1, 200, 450])
def test_the_memory_gate_is_open_where_nothing_lives(prompt):
    world = learned(AdmissionConfig(mode="goodput", memory_slack=0.0, memory_room=100.0))
    assert ask(world, prompt, 5, 3600 * SECOND) == [Cause.LENGTH]
