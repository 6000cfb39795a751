"""A race is won: the winner goes on as if alone, and its siblings end and stay away."""

from engine.core.commands import Cancel
from telemetry.events import CancelApplied, Cause, Phase, SequenceEnded
from telemetry.lineage import Scope
from tests.kernel.world import World, config, won

MS = 1_000_000


def race(world: World, task: str = "t", **more) -> list[int]:
    """Three attempts of one task, in order of their names."""
    return [
        world.submit("a", 10, 20, task=task, attempt=name, **more)[0] for name in ("a1", "a2", "a3")
    ]


def test_losers_end_before_the_next_step_and_the_winner_says_what_it_says_alone():
    world, alone = World(config(max_running=2)), World(config(max_running=2))
    winner, loser, queued = race(world)
    alone.submit("a", 10, 20, task="t", attempt="a1")
    for _ in range(3):
        world.step()
    said = len(world.tokens[loser])
    world.apply(won("a", "t", "a1"))
    world.run()
    alone.run()
    world.check_idle()
    ends = {end.sequence: end for end in world.of(SequenceEnded)}
    assert ends[winner].cause is Cause.LENGTH
    assert world.tokens[winner] == alone.tokens[winner]
    assert (ends[loser].cause, ends[loser].phase) == (Cause.LOST_RACE, Phase.DECODE)
    assert len(world.tokens[loser]) == ends[loser].output_tokens == said
    assert ends[loser].blocks_released > 0
    assert (ends[queued].cause, ends[queued].phase) == (Cause.LOST_RACE, Phase.QUEUED)
    (applied,) = world.of(CancelApplied)
    assert (applied.queued, applied.prefill, applied.decode) == (1, 0, 1)
    assert applied.spare == Scope("a", "t", attempt="a1")


def test_only_the_committed_task_of_the_tenant_is_concerned():
    world = World()
    others = race(world, "t1"), [world.submit("b", 10, 20, task="t", attempt="a2")[0]]
    world.apply(won("a", "t", "a1"))
    world.run()
    assert {world.ended[number].cause for group in others for number in group} == {Cause.LENGTH}


def test_late_losers_are_refused_until_the_tombstone_expires_and_the_winner_never_is():
    world = World(config(tombstone_ttl=1000 * MS))
    world.apply(won("a", "t", "a2"))
    late, winner, _ = race(world)
    assert world.ended[late].cause is Cause.RACE_OVER
    world.clock.advance(1001 * MS)
    (after,) = world.submit("a", 10, 2, task="t", attempt="a1")
    world.run()
    assert world.ended[winner].cause is world.ended[after].cause is Cause.LENGTH


def test_a_run_tells_attempts_with_one_id_apart():
    world = World()
    first, second = (race(world, run=run)[0] for run in ("r1", "r2"))
    world.apply(won("a", "t", "a1", run="r2"))
    world.run()
    assert world.ended[first].cause is Cause.LOST_RACE
    assert world.ended[second].cause is Cause.LENGTH


def test_the_first_winner_stands():
    """Whoever asks again, or for another, changes nothing; nor does it wake a cancelled task."""
    world = World()
    first, *_ = race(world)
    for attempt in ("a1", "a1", "a2"):
        world.apply(won("a", "t", attempt))
    (late,) = world.submit("a", 10, 2, task="t", attempt="a2")
    world.run()
    assert world.ended[first].cause is Cause.LENGTH
    assert world.ended[late].cause is Cause.RACE_OVER
    assert [event.decode + event.queued for event in world.of(CancelApplied)] == [2, 0, 0]


def test_what_was_cancelled_whole_has_no_winner():
    world = World()
    race(world)
    world.apply(Cancel(Scope("a", "t"), remember=True))
    world.apply(won("a", "t", "a1"))
    (late,) = world.submit("a", 10, 2, task="t", attempt="a1")
    assert world.ended[late].cause is Cause.TASK_CANCELLED


def test_a_committed_task_can_still_be_cancelled():
    world = World()
    winner, *_ = race(world)
    world.apply(won("a", "t", "a1"))
    world.apply(Cancel(Scope("a", "t"), remember=True))
    (late,) = world.submit("a", 10, 2, task="t", attempt="a1")
    assert world.ended[winner].cause is Cause.CANCELLED
    assert world.ended[late].cause is Cause.TASK_CANCELLED


def test_every_choice_of_a_loser_ends_and_none_of_the_winner():
    world = World()
    loser = world.submit("a", [7] * 60, 5, n=2, task="t", attempt="a1")
    winner = world.submit("a", [7] * 60, 5, n=2, task="t", attempt="a2")
    world.step()
    world.apply(won("a", "t", "a2"))
    world.run()
    world.check_idle()
    assert {world.ended[number].cause for number in loser} == {Cause.LOST_RACE}
    assert {world.ended[number].cause for number in winner} == {Cause.LENGTH}
