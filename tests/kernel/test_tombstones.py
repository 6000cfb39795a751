"""How much is remembered of what was cancelled, and whose goes first."""

from engine.core.commands import Cancel
from telemetry.events import Cause
from telemetry.lineage import Scope
from tests.kernel.world import World, config

MS = 1_000_000


def test_tombstones_are_bounded():
    world = World(config(max_tombstones=3))
    for i in range(10):
        world.apply(Cancel(Scope("a", f"t{i}"), remember=True))
    assert len(world.scheduler._state.tombstones) == 3


def test_a_tenant_that_cancels_much_makes_the_kernel_forget_only_its_own_cancellations():
    world = World(config(max_tombstones=8))
    world.apply(Cancel(Scope("a", "t"), remember=True))
    for i in range(20):
        world.apply(Cancel(Scope("b", f"t{i}"), remember=True))
    (late,) = world.submit("a", 10, 2, task="t")
    mine = [world.submit("b", 10, 2, task=f"t{i}")[0] for i in range(20)]
    world.run()
    assert world.ended[late].cause is Cause.TASK_CANCELLED
    assert [world.ended[number].cause for number in mine] == (
        [Cause.LENGTH] * 13 + [Cause.TASK_CANCELLED] * 7
    )


def test_what_has_expired_takes_no_room_from_a_cancellation_that_stands():
    world = World(config(max_tombstones=3, tombstone_ttl=1000 * MS))
    world.apply(Cancel(Scope("b", "old"), remember=True))
    world.clock.advance(600 * MS)
    for task in ("t1", "t2"):
        world.apply(Cancel(Scope("a", task), remember=True))
    world.clock.advance(600 * MS)
    world.apply(Cancel(Scope("b", "new"), remember=True))
    late = [world.submit("a", 10, 2, task=task)[0] for task in ("t1", "t2")]
    assert [world.ended[number].cause for number in late] == [Cause.TASK_CANCELLED] * 2
