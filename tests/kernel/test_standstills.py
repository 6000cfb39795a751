"""A process that stood still, or a machine that was slow for a while: what is promised afterwards.

Four run and eight wait; each of the waits told is one place's, about 0.3 s here.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.drainage import places_seconds
from engine.sim.profile import A10G_LLAMA2_7B, StepShape
from policies.admission import AdmissionConfig
from policies.promises import PromiseConfig
from telemetry.events import StepCommitted
from telemetry.units import SECOND
from tests.kernel.test_admission_control import learned
from tests.kernel.world import World

CAP = 8  # places in a tenant's queue


class Machine:
    """An A10G whose next step takes `extra` nanoseconds more, and each `slower` times as long."""

    def __init__(self) -> None:
        self.extra, self.slower = 0, 1.0

    def duration(self, shape: StepShape) -> int:
        extra, self.extra = self.extra, 0
        return int(A10G_LLAMA2_7B.duration(shape) * self.slower) + extra


def machine_and_world(**promises: float) -> tuple[Machine, World]:
    machine = Machine()
    admission = AdmissionConfig(promises=PromiseConfig(**promises))
    return machine, learned(admission, profile=machine, tenant_queued_requests=CAP)


def fill(world: World) -> None:
    """Four run, and the queue is full."""
    while world.scheduler.waiting < CAP:
        world.submit("a", 20, 60)
        if world.scheduler.running < 4:
            world.step()


def work(world: World, steps: int) -> None:
    for _ in range(steps):
        fill(world)
        world.step()


def place(world: World) -> float:
    """Seconds that are foretold for one place of the full queue."""
    fill(world)
    state = world.scheduler._state
    return places_seconds(state, state.tree.find(("a",)), 1, 20)


def idle(world: World) -> None:
    world.run()
    world.clock.advance(60 * SECOND)


@given(st.floats(0.5, 600), st.integers(0, 40), st.booleans())
@settings(max_examples=20, deadline=None)
def test_a_standstill_says_nothing_of_the_waits_after_it(seconds, before, within_step):
    """Of any length, and whether a step was stopped or what lies between two."""
    machine, world = machine_and_world()
    work(world, 100 + before)
    usual = place(world)
    if within_step:
        machine.extra = int(seconds * SECOND)
    else:
        world.clock.advance(int(seconds * SECOND))
    world.step()
    assert place(world) == pytest.approx(usual, rel=0.5)
    work(world, 50)
    assert place(world) == pytest.approx(usual, rel=0.25)
    idle(world)
    assert place(world) == pytest.approx(usual, rel=0.25)


def test_pauses_that_come_again_and_again_are_part_of_what_is_foretold():
    """Every other step takes nine times as long: what is told is five times as long."""
    machine, world = machine_and_world()
    work(world, 100)
    usual = place(world)
    for _ in range(400):
        machine.slower = 10.0 - machine.slower  # 9, 1, 9, ...
        work(world, 1)
    assert place(world) > 3 * usual


@pytest.mark.parametrize(("times", "error"), [(6.0, 0.7), (1.5, 0.2), (1 / 3, 0.35)])
def test_a_machine_that_changes_its_speed_for_a_while_is_foretold_so_while_it_does(times, error):
    """For as long as 500 steps, and it is known after 100."""
    machine, world = machine_and_world()
    work(world, 200)
    usual = place(world)
    for speed in (times, 1.0):
        machine.slower = speed
        work(world, 100)
        assert place(world) == pytest.approx(speed * usual, rel=error)
        work(world, 400)
        assert place(world) == pytest.approx(speed * usual, rel=0.25)


def test_each_step_says_how_slow_the_machine_had_been_before_it():
    machine, world = machine_and_world()
    work(world, 200)
    machine.slower = 2.0
    work(world, 100)
    told = [event.slowness for event in world.of(StepCommitted)]
    assert told[50:200] == pytest.approx([1.0] * 150, abs=0.1)
    assert told[-1] == pytest.approx(2.0, rel=0.2)


def test_promises_keep_nobody_out_of_an_idle_engine():
    """Whoever was promised a place of the queue finds it; who starts at once takes none of them."""
    _, world = machine_and_world()
    work(world, 20)
    fill(world)
    told = [world.submit("a", 20, 60, claims=(f"t{i}",))[0] for i in range(3 * CAP)]
    assert all(world.ended[number].promised for number in told)
    world.run()
    state = world.scheduler._state
    assert state.promises.tally(("a",)).sequences > CAP
    fresh = [world.submit("a", 20, 60)[0] for _ in range(4)]
    assert not set(fresh) & set(world.ended)
    world.step()
    due = max(promise.due for promise in state.promises.of(("a",)))
    world.clock.advance_to(due)
    (returned,) = world.submit("a", 20, 60, claims=(f"t{3 * CAP - 1}",))
    assert returned not in world.ended


def test_what_is_told_while_nobody_waits_is_the_price_of_what_usually_comes():
    """Not of answers as long as the context, which nobody asks for."""
    _, world = machine_and_world()
    work(world, 200)
    state = world.scheduler._state
    node = state.tree.find(("a",))
    waiting = place(world)
    world.run()
    assert places_seconds(state, node, 1, 20) == pytest.approx(waiting, rel=0.5)
