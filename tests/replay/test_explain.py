"""Waterfalls: they add up in every history, and say the right thing where it is known."""

import pytest
from hypothesis import given, settings

from engine.core.commands import Abort
from engine.sim.profile import UNIT_TIME
from policies.config import PolicyConfig
from policies.fairness.config import FairnessConfig
from telemetry.events import (
    CallAnswered,
    CallSubmitted,
    Cause,
    Event,
    PreemptMode,
    SequenceArrived,
    SequenceEnded,
    SequencePreempted,
    SequenceRefused,
)
from telemetry.explain import ExplainFold, explain
from telemetry.lineage import Lineage
from telemetry.units import SECOND
from telemetry.waterfall import Part, Waterfall
from tests.kernel.world import World, config
from tests.replay.histories import HISTORIES, KERNELS, Talk

QUEUE = (Part.OWN_FLOW, Part.OTHERS, Part.KV, Part.ROOM)


def waterfalls(events: list[Event]) -> dict[int, Waterfall]:
    fold = ExplainFold()
    for event in events:
        fold.apply(event)
    ended = fold.take()
    assert len({waterfall.sequence for waterfall in ended}) == len(ended)
    return {waterfall.sequence: waterfall for waterfall in ended}


def sum_of(waterfall: Waterfall, *parts: Part) -> int:
    return sum(waterfall.parts[part] for part in parts)


@settings(max_examples=50, deadline=None)
@given(HISTORIES, KERNELS)
def test_parts_sum_to_the_latency_in_every_history(actions, kernel):
    world = Talk(kernel)
    world.play(actions)
    found = waterfalls(world.events)
    ends = world.of(SequenceEnded)
    choices = {}
    for event in world.of(SequenceArrived):
        choices.setdefault(event.lineage.request, []).append(event.sequence)
    assert set(found) == {end.sequence for end in [*ends, *world.of(SequenceRefused)]}
    for end in ends:
        waterfall = found[end.sequence]
        assert set(waterfall.parts) == set(Part)
        assert min(waterfall.parts.values()) >= 0
        assert sum(waterfall.parts.values()) == end.now - end.arrived == waterfall.latency
        if len(choices[end.lineage.request]) == 1 and not waterfall.times_taken:
            check_phases(waterfall, end)


def check_phases(waterfall: Waterfall, end: SequenceEnded) -> None:
    """The kernel's own instants cut the waterfall of an undisturbed sequence."""
    admitted = end.now if end.admitted is None else end.admitted
    first_token = end.now if end.first_token is None else end.first_token
    assert sum_of(waterfall, *QUEUE) == admitted - end.arrived
    assert sum_of(waterfall, Part.PREFILL, Part.INTERLEAVED) == max(first_token - admitted, 0)
    assert sum_of(waterfall, Part.DECODE, Part.PAUSED) == end.now - first_token
    assert waterfall.parts[Part.PREEMPTED] == 0


@settings(max_examples=20, deadline=None)
@given(HISTORIES, KERNELS)
def test_following_one_sequence_tells_the_same_as_following_all(actions, kernel):
    world = Talk(kernel)
    world.play(actions)
    together = waterfalls(world.events)
    for number in sorted(together):
        group = [n for n, other in together.items() if other.lineage == together[number].lineage]
        assert together[number] in explain(world.events, sorted(group))


def world(**changes) -> World:
    """One slot and one second a step, unless said otherwise."""
    return World(config(**({"max_running": 1, "num_blocks": 400} | changes)), profile=UNIT_TIME)


def seconds(waterfall: Waterfall) -> dict[Part, int]:
    """The parts that are not nothing."""
    assert all(ns % SECOND == 0 for ns in waterfall.parts.values())
    return {part: ns // SECOND for part, ns in waterfall.parts.items() if ns}


def test_an_undisturbed_sequence_computes_all_the_time():
    here = world()
    (number,) = here.submit("a", 10, 5)
    here.run()
    assert seconds(waterfalls(here.events)[number]) == {Part.PREFILL: 1, Part.DECODE: 4}


def test_a_waiter_stands_behind_its_own_flow_then_waits_for_a_slot():
    """One slot: the first runs for 5 s, the second for 3 s, the third sees both pass."""
    here = world()
    numbers = [here.submit("a", 10, output)[0] for output in (5, 3, 2)]
    here.run()
    found = waterfalls(here.events)
    assert seconds(found[numbers[1]]) == {Part.ROOM: 5, Part.PREFILL: 1, Part.DECODE: 2}
    assert seconds(found[numbers[2]]) == {
        Part.OWN_FLOW: 5,
        Part.ROOM: 3,
        Part.PREFILL: 1,
        Part.DECODE: 1,
    }
    assert found[numbers[2]].served == {("a",): 10 + 5 + 10 + 3}


def test_a_flow_that_was_served_much_waits_for_the_share_of_others():
    """`a` holds the slot up to second 6. At first its own waiter is next in line, but from second 2

    on `a` is ahead of `b`, whose two waiters of 2 s each, of three times the weight, go first. Once
    the second of these runs, from second 8, only the slot is missing.
    """
    here = world()
    here.submit("a", 50, 6)
    here.step()
    (last,) = here.submit("a", 10, 1)
    for _ in range(2):
        here.submit("b", 10, 2, weight=3.0)
    here.run()
    waterfall = waterfalls(here.events)[last]
    assert seconds(waterfall) == {Part.ROOM: 3, Part.OTHERS: 6, Part.PREFILL: 1}
    assert waterfall.served == {("a",): 5, ("b",): 24}


def test_what_arrives_during_a_step_waits_for_its_end():
    here = world(max_running=2)
    here.submit("a", 10, 3)
    here.step()
    here.clock.advance(SECOND // 4)  # as if the second step were under way already
    (late,) = here.submit("b", 10, 1)
    here.clock.advance(SECOND // 4)
    here.run()
    parts = waterfalls(here.events)[late].parts
    assert parts[Part.ROOM] == SECOND // 4
    assert parts[Part.PREFILL] == SECOND


def test_a_waiter_without_memory_waits_for_kv():
    """8 blocks of 16: the first holds 7 of them until its end, after 4 s."""
    here = world(max_running=2, num_blocks=8, kv_reserve=0.0, max_step_tokens=512)
    here.submit("a", 100, 4)
    (number,) = here.submit("b", 60, 2)
    here.run()
    assert seconds(waterfalls(here.events)[number]) == {
        Part.KV: 4,
        Part.PREFILL: 1,
        Part.DECODE: 1,
    }


def test_a_chunked_prompt_is_interleaved_with_others():
    """A budget of 16 a step: two prompts of 24 take turns; only computing steps count as such."""
    here = world(max_running=2, max_step_tokens=16, min_chunk=8)
    one, two = here.submit("a", 24, 1)[0], here.submit("b", 24, 1)[0]
    here.run()
    found = waterfalls(here.events)
    for number in (one, two):
        waterfall = found[number]
        computing = sum_of(waterfall, Part.PREFILL) // SECOND
        assert computing == waterfall.steps
        assert sum_of(waterfall, Part.PREFILL, Part.INTERLEAVED, *QUEUE) == waterfall.latency


@pytest.mark.parametrize("mode", list(PreemptMode))
def test_a_place_taken_back_shows_as_what_it_cost(mode):
    """`a` is far ahead when `b` comes; one of its two is paused, swapped out or dropped."""
    tight = mode is not PreemptMode.PAUSE
    here = world(
        num_blocks=20 if tight else 400,
        max_running=3 if tight else 2,
        max_step_tokens=256,
        kv_reserve=0.0,
        host_blocks=20,
        policy=PolicyConfig(
            fairness=FairnessConfig("fair", max_lag=30.0),
            preemption="swap" if mode is PreemptMode.SWAP else "recompute",
        ),
    )
    for _ in range(2):
        here.submit("a", 100, 40, weight=0.1)
    for _ in range(12):
        here.step()
    here.submit("b", 100, 20)
    here.run()
    taken = here.of(SequencePreempted)
    waterfall = waterfalls(here.events)[taken[0].sequence]
    assert {event.mode for event in taken} == {note.mode for note in waterfall.taken} == {mode}
    assert waterfall.times_taken == sum(e.sequence == waterfall.sequence for e in taken)
    lost = Part.PAUSED if mode is PreemptMode.PAUSE else Part.PREEMPTED
    assert waterfall.parts[lost] >= SECOND
    # Computing again ends with a step that draws a token; moving KV makes a step a little longer.
    computing = sum_of(waterfall, Part.PREFILL, Part.DECODE) // SECOND
    assert computing == (39 if mode is PreemptMode.RECOMPUTE else 40)
    assert sum(waterfall.parts.values()) == waterfall.latency


def test_choices_share_the_wait_for_their_prompt():
    here = world(max_running=3)
    here.submit("b", 10, 4, n=3)
    here.step()
    numbers = here.submit("a", 10, 3, n=2)
    here.run()
    found = waterfalls(here.events)
    first, second = (seconds(found[number]) for number in numbers)
    assert first == second == {Part.ROOM: 3, Part.PREFILL: 1, Part.DECODE: 2}


def test_a_cancelled_sequence_counts_what_was_in_flight_for_it():
    here = world(max_in_flight=2)
    (number,) = here.submit("a", 10, 9)
    here.step()
    here.apply(Abort((number,), Cause.DISCONNECTED))
    here.run()
    waterfall = waterfalls(here.events)[number]
    assert (waterfall.lag_tokens, waterfall.cause) == (10, Cause.DISCONNECTED)


LINEAGE = Lineage("a", "task", "run", "attempt", "req-1")


def test_the_gateway_and_the_delivery_complete_it():
    here = world()
    here.clock.advance(10)
    start = here.clock.now()
    (number,) = here.submit("a", 10, 5)
    here.run()
    end = here.clock.now()
    submitted = CallSubmitted(start - 2, start - 7, LINEAGE, (number,))
    answered = CallAnswered(end + 5, (number,))
    (waterfall,) = explain([submitted, *here.events, answered], [number])
    assert waterfall.parts[Part.GATEWAY] == 7
    assert waterfall.parts[Part.DELIVERY] == 5
    assert sum(waterfall.parts.values()) == waterfall.latency == end + 5 - (start - 7)


def test_a_caller_who_left_before_the_end_is_not_delivered_to():
    here = world()
    (number,) = here.submit("a", 10, 5)
    here.run()
    (waterfall,) = explain([*here.events, CallAnswered(here.clock.now() - 1, (number,))], [number])
    assert waterfall.parts[Part.DELIVERY] == 0
    assert sum(waterfall.parts.values()) == waterfall.latency == here.clock.now() - 1


def test_a_living_sequence_is_explained_so_far():
    here = world()
    (running,), (waiting,) = here.submit("a", 10, 5), here.submit("a", 10, 5)
    for _ in range(3):
        here.step()
    found = explain(here.events, [running, waiting])
    assert [waterfall.ended for waterfall in found] == [None, None]
    assert seconds(found[0]) == {Part.PREFILL: 1, Part.DECODE: 2}
    assert seconds(found[1]) == {Part.ROOM: 3}


def test_a_refusal_takes_no_time_in_the_engine():
    here = world()
    (number,) = here.submit("a", 1000, 5)
    (waterfall,) = explain(here.events, [number])
    assert (waterfall.cause, waterfall.latency) == (Cause.TOO_LARGE, 0)


def test_unknown_sequences_have_no_waterfall():
    here = world()
    here.submit("a", 10, 5)
    here.run()
    assert explain(here.events, [77]) == []
