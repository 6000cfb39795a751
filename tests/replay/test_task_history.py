"""What is told of a task agrees with the kernel, at every moment of every history."""

from dataclasses import replace

from hypothesis import given, settings

from engine.core.commands import Abort, Cancel
from engine.sim.profile import UNIT_TIME
from telemetry.events import (
    CancelApplied,
    Cause,
    Phase,
    SequenceArrived,
    SequenceEnded,
    SequenceRefused,
    StepCommitted,
)
from telemetry.lineage import Scope
from telemetry.task_history import Told, tell
from telemetry.units import SECOND
from tests.kernel.world import World, config, won
from tests.replay.histories import HISTORIES, KERNELS, Talk


class Watched(Talk):
    """Compares after each step what the kernel knows of one task with what its events tell."""

    def _collect(self) -> None:
        super()._collect()
        live = self.scheduler._state.sequences
        told = {one.sequence: one for one in tell(self.events, "a", "task")}
        known = {number for number, one in told.items() if one.cause is None}
        assert known == {n for n, one in live.items() if one.lineage.tenant == "a"}
        for number in known:
            assert told[number].phase is live[number].phase
            assert told[number].output_tokens == len(self.tokens[number])
            assert told[number].cached_tokens == live[number].cached_tokens


@settings(max_examples=25, deadline=None)
@given(HISTORIES, KERNELS)
def test_states_and_tokens_are_those_of_the_kernel_in_every_history(actions, kernel):
    world = Watched(kernel)
    world.play(actions)
    told = {one.sequence: one for one in tell(world.events, "a", "task")}
    ends = [end for end in world.of(SequenceEnded) if end.lineage.tenant == "a"]
    refused = [event for event in world.of(SequenceRefused) if event.lineage.tenant == "a"]
    assert set(told) == {event.sequence for event in [*ends, *refused]}
    for end in ends:
        one = told[end.sequence]
        assert (one.cause, one.phase) == (end.cause, end.phase)
        assert (one.cached_tokens, one.output_tokens) == (end.cached_tokens, end.output_tokens)
        processed = [world.ended[n].processed_tokens for n in told if shares(told[n], one)]
        if one.first:
            assert one.prompt_tokens == max(processed)
    for event in refused:
        assert (told[event.sequence].cause, told[event.sequence].phase) == (event.cause, None)
    prompts = {event.lineage.request for event in world.of(SequenceArrived)}
    mine = [one for one in told.values() if one.phase is not None]
    assert sum(one.first for one in mine) == len({one.lineage.request for one in mine} & prompts)


def shares(one: Told, other: Told) -> bool:
    """Whether they are choices of one request that was taken in."""
    return one.lineage == other.lineage and None not in (one.phase, other.phase)


def find(world: World, sequence: int) -> Told:
    (one,) = (one for one in tell(world.events, "a", "task") if one.sequence == sequence)
    return one


def world(**changes) -> World:
    """One second a step."""
    return World(config(**({"num_blocks": 400} | changes)), profile=UNIT_TIME)


def test_lag_is_what_was_computed_after_the_word_came():
    """The word comes within the third of three decode steps and is heeded after it."""
    here = world()
    (loser,) = here.submit("a", 10, 50, attempt="a1")
    (winner,) = here.submit("a", 10, 5, attempt="a2")
    for _ in range(4):
        here.step()
    half_a_step_ago = here.clock.now() - SECOND // 2
    command = won("a", "task", "a2")
    here.apply(replace(command, received=half_a_step_ago))
    here.run()
    one = find(here, loser)
    assert (one.cause, one.phase) == (Cause.LOST_RACE, Phase.DECODE)
    assert (one.output_tokens, one.lag_tokens) == (4, 1)
    assert find(here, winner).lag_tokens == 0
    assert here.of(CancelApplied)[0].received == half_a_step_ago


def test_lag_counts_the_steps_in_flight_when_they_overlap():
    here = world(max_in_flight=2)
    (number,) = here.submit("a", 10, 50)
    for _ in range(4):
        here.step()
    word = here.clock.now() - SECOND // 2
    here.apply(Cancel(Scope("a", "task"), received=word))
    flying = here.scheduler.in_flight
    here.run()
    assert flying == 1
    assert find(here, number).lag_tokens == 1 + flying
    assert sum(event.lag_tokens for event in here.of(StepCommitted)) == flying


def test_a_hang_up_has_only_what_is_in_flight():
    here = world()
    (number,) = here.submit("a", 10, 50)
    for _ in range(4):
        here.step()
    here.apply(Abort((number,), Cause.DISCONNECTED))
    assert find(here, number).lag_tokens == 0


def test_other_tasks_and_tenants_are_not_told():
    here = world()
    (mine,) = here.submit("a", 10, 3)
    here.submit("a", 10, 3, task="task2")
    here.submit("b", 10, 3)
    here.run()
    assert [one.sequence for one in tell(here.events, "a", "task")] == [mine]
    assert tell(here.events, "a", "tas") == []


def test_of_a_prompt_that_is_cut_off_counts_what_was_processed():
    """64 positions a step: after two steps 128 of 200 are computed, as the bill says."""
    world = World()
    (number,) = world.submit(prompt=200)
    world.step()
    world.step()
    assert [one.prompt_tokens for one in tell(world.events, "a", "task")] == [200]
    world.apply(Cancel(Scope("a", "task"), Cause.CANCELLED))
    assert [one.prompt_tokens for one in tell(world.events, "a", "task")] == [128]
    assert world.ended[number].processed_tokens == 128


def test_what_another_choice_goes_on_with_counts_once():
    """The first choice is cancelled after 64 positions, and the second computes the other 136."""
    world = World()
    first, second = world.submit(prompt=200, n=2)
    world.step()
    world.apply(Abort((first,), Cause.CANCELLED))
    assert tell(world.events, "a", "task")[0].prompt_tokens == 64
    world.run()
    one, other = tell(world.events, "a", "task")
    assert (one.prompt_tokens, one.first, other.first) == (200, True, False)
    assert world.ended[second].processed_tokens == 200


def test_a_prompt_that_was_answered_counts_in_full():
    world = World()
    world.submit(prompt=200)
    world.run()
    world.submit(prompt=list(range(200)))
    world.run()
    assert [one.prompt_tokens for one in tell(world.events, "a", "task")] == [200, 200]
