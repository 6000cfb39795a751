"""Places in a queue that are promised to refused callers: held for them, and there when told."""

import numpy as np
import pytest

from engine.core.commands import Abort, FlowNode, Submit
from engine.core.drainage import places_seconds
from engine.core.plan import Sampling
from engine.core.preempt import pause
from telemetry.admission_events import PromiseLapsed
from telemetry.events import Cause, PreemptReason
from telemetry.lineage import Lineage
from telemetry.units import SECOND
from tests.kernel.test_admission_control import learned
from tests.kernel.world import World

CAP = 10  # places in a tenant's queue


def full(world: World) -> list[int]:
    """The tenant's queue is full of work that ends one by one; returns it in order."""
    numbers = [world.submit("a", 20, 40 + 10 * i)[0] for i in range(4)]
    while world.scheduler.running < 4:
        world.step()
    return numbers + [world.submit("a", 20, 60 + i)[0] for i in range(CAP)]


def refuse(world: World, count: int) -> list[int]:
    """So many are refused, each with a place held for it."""
    numbers = [world.submit("a", 20, 60, claims=(f"t{i}",))[0] for i in range(count)]
    assert all(world.ended[number].promised for number in numbers)
    return numbers


def taken_in(world: World) -> bool:
    (number,) = world.submit("a", 20, 60)
    return number not in world.ended


def test_fresh_arrivals_leave_a_place_to_everyone_who_was_promised_one():
    """Of ten places three are held, then four: the fifth that comes free is anybody's."""
    world = learned(tenant_queued_requests=CAP)
    full(world)
    refuse(world, 3)
    while world.scheduler.waiting > 7:
        world.step()
    assert not taken_in(world)  # and a fourth place is promised
    while world.scheduler.waiting > 5:
        world.step()
    assert not world.of(PromiseLapsed)
    assert taken_in(world)


def test_promises_leave_a_queue_half_full_and_not_empty():
    """Half of those who wait hang up: what was promised for later need not be held any more."""
    world = learned(tenant_queued_requests=CAP)
    numbers = full(world)
    refuse(world, 15)
    world.apply(Abort(tuple(numbers[-5:]), Cause.CANCELLED))
    assert world.scheduler.waiting == 5
    assert not taken_in(world)
    world.apply(Abort((numbers[-6],), Cause.CANCELLED))
    assert world.scheduler.waiting == 4
    assert taken_in(world)
    assert not taken_in(world)


def as_returned(number: int) -> Submit:
    return Submit(
        lineage=Lineage("a", "task", "run", "attempt", "again"),
        sequences=(number,),
        flow=(FlowNode("a"),),
        prompt=np.full(20, 1, np.int32),
        salt=b"",
        block_hashes=(),
        max_tokens=60,
        sampling=Sampling(temperature=0.0),
    )


def test_a_hint_is_about_when_the_place_is_there():
    """Eight are refused at once: those before have to go, those after stand behind."""
    world = learned(tenant_queued_requests=CAP)
    full(world)
    began = world.clock.now()
    numbers = refuse(world, 8)
    told = [world.ended[number].retry_after / SECOND for number in numbers]
    there = None
    for _ in range(400):
        world.step()
        if world.scheduler.has_place(as_returned(999), began):
            there = (world.clock.now() - began) / SECOND
            break
    assert there == pytest.approx(told[-1], rel=0.25)
    assert told == pytest.approx([(i + 1) * told[0] for i in range(8)], rel=0.01)


def test_what_a_full_queue_refuses_is_asked_for_all_the_same_and_once():
    world = learned(tenant_queued_requests=CAP)
    full(world)
    state = world.scheduler._state

    def offered(change):
        now = world.clock.now()
        before = state.outlook.offered.of("a", now)
        change()
        return state.outlook.offered.of("a", now) - before

    one = offered(lambda: refuse(world, 1))
    assert one > 0
    assert offered(lambda: refuse(world, 3)) == pytest.approx(3 * one)
    assert offered(lambda: world.submit("a", 20, 60, queue_tokens=19)) == 0  # nobody can give that
    (promise, *_) = state.promises.of(("a",))
    while world.clock.now() < promise.due:
        world.step()
    assert offered(lambda: world.submit("a", 20, 60, claims=("t0",))) == 0
    assert world.scheduler.waiting > 0


def test_places_of_work_put_aside_are_not_waited_for():
    """Eight are refused by a queue that moves slowly, while three who ran wait to run again."""
    world = learned(tenant_queued_requests=CAP)
    numbers = full(world)
    state, now = world.scheduler._state, world.clock.now()
    world.apply(Abort(tuple(numbers[-3:]), Cause.CANCELLED))
    for sequence in state.batch.live()[:3]:
        pause(state, sequence, PreemptReason.LAG, state.sequences[numbers[4]], now)
    node = state.tree.find(("a",))
    fluid = places_seconds(state, node, 8, 160)
    for seconds in range(10, 100, 10):
        node.departures.observe(now + seconds * SECOND, 0, 20)
    slow = places_seconds(state, node, 8, 160)
    assert slow > 2 * fluid
    told = world.ended[refuse(world, 8)[-1]].retry_after / SECOND
    assert told == pytest.approx(slow * 5 / 8, rel=0.01)
    assert places_seconds(state, node, 8, 160, put_aside=8) == fluid
