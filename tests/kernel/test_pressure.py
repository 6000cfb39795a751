"""What an orchestrator is told of its tenant: true, and of no consequence."""

import pytest
from hypothesis import given, settings

from engine.core.commands import FlowNode
from engine.core.pressure import Inquiry, Pressure
from policies.config import PolicyConfig
from telemetry.events import Cause, SequenceAdmitted, SequenceEnded
from telemetry.units import SECOND
from tests.kernel.bursts import bursts
from tests.kernel.test_admission_control import backlog, cause, learned
from tests.kernel.test_laws import ACTIONS, ARRIVALS, play
from tests.kernel.world import World, config


def ask(world: World, *path: str, weight: float = 1.0, **caps) -> Pressure:
    flow = (FlowNode(path[0], weight), *map(FlowNode, path[1:]))
    return world.scheduler.pressure(Inquiry(flow, **caps), world.clock.now())


def test_an_idle_engine_has_room_for_all_it_can_run():
    world = World(config(max_running=4))
    told = ask(world, "new")
    assert told == Pressure(0, 0, 0, 256, 500_000, 0, 0.0, None, 4, 0.0, None)


def test_nothing_is_foretold_on_a_guess():
    world = World(config(max_running=4))
    for _ in range(5):
        world.submit("a", 20, 60)
    while world.scheduler.running < 4:
        world.step()
    told = ask(world, "a")
    assert (told.running, told.queued, told.queued_tokens) == (4, 1, 20)
    assert told.start is None


def test_the_start_told_is_about_when_a_call_then_starts():
    world = learned()
    backlog(world, "a", 20)
    told, now = ask(world, "a"), world.clock.now()
    (number,) = world.submit("a", 20, 60)
    world.run()
    (admitted,) = [e for e in world.of(SequenceAdmitted) if e.sequence == number]
    assert told.start == pytest.approx((admitted.now - now) / SECOND, rel=0.35)
    assert told.start > 1
    (ended,) = [e for e in world.of(SequenceEnded) if e.sequence == number]
    assert told.duration == pytest.approx((ended.now - admitted.now) / SECOND, rel=0.35)


def test_a_full_queue_says_what_its_refusals_say():
    world = learned(tenant_queued_requests=10)
    backlog(world, "a", 9)
    assert ask(world, "a").retry_after is None
    world.submit("a", 20, 60)
    told = ask(world, "a")
    assert (told.queued, told.max_queued, told.promised) == (10, 10, 0)
    (refused,) = world.submit("a", 20, 60)
    assert cause(world, refused) is Cause.QUEUE_FULL
    # Told for a call of the usual size; the places wanted are what counts for most of it.
    assert told.retry_after == pytest.approx(world.ended[refused].retry_after, rel=0.05)
    again = ask(world, "a")
    assert again.promised == 1
    assert again.retry_after > 1.5 * told.retry_after  # the place promised stands before it
    assert ask(world, "a", queue_requests=50).retry_after is None
    assert ask(world, "b").retry_after is None


def test_who_would_displace_another_is_not_told_to_wait():
    world = learned(max_queued_requests=20)
    backlog(world, "heavy", 20)
    assert ask(world, "heavy").retry_after > 0
    world.submit("light", 20, 5)  # takes a place; so would another
    assert ask(world, "light").retry_after is None
    assert ask(world, "light").max_queued == 20


def test_parallelism_is_the_share_by_weight_and_what_others_leave():
    world = learned(num_blocks=200)
    assert ask(world, "a").parallel == 4
    world.submit("b", 20, 60)
    world.step()
    assert ask(world, "a").parallel == 3  # one of four is b's, who wants no more
    backlog(world, "b", 5)
    assert ask(world, "a").parallel == 2
    assert ask(world, "new", weight=3.0).parallel == 3
    assert ask(world, "new", weight=0.01).parallel == 1  # never none


def test_memory_bounds_parallelism_where_it_is_scarcer_than_slots():
    """Prompts are about 13 tokens and outputs at most 20, so that 80 tokens hold two."""
    world = learned(num_blocks=5)
    world.submit("a", 13, 20)
    world.step()
    assert ask(world, "a").parallel == 2


def test_debt_is_what_was_served_beyond_the_least_served_who_waits():
    world = learned()
    assert ask(world, "past").debt == 0
    backlog(world, "a", 4)
    for _ in range(30):
        world.step()
    world.submit("b", 20, 60)
    tree = world.scheduler._state.tree
    lead = tree.find(("a",)).counter - tree.find(("b",)).counter
    assert ask(world, "a").debt == pytest.approx(lead)
    assert ask(world, "b").debt == pytest.approx(-lead)


@given(bursts(ARRIVALS, ACTIONS))
@settings(max_examples=20, deadline=None)
def test_asking_changes_nothing(actions):
    """The same history with and without questions at every turn is decided the same way."""
    kernel = config(policy=PolicyConfig(), num_blocks=24, max_queued_requests=6)

    class Asked(World):
        def _collect(self) -> None:
            super()._collect()
            for tenant in ("a", "b", "c", "new"):
                ask(self, tenant)
                ask(self, tenant, "below")

    plain, asked = World(kernel), Asked(kernel)
    play(plain, actions)
    play(asked, actions)
    assert asked.events == plain.events
