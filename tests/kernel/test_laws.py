"""The kernel's laws hold on every step of random histories (checked inside World)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.commands import Abort, Cancel, Finish
from telemetry.events import Cause, SequencePreempted
from telemetry.lineage import Scope
from tests.kernel.world import World, config

ARRIVALS = st.tuples(
    st.just("arrive"),
    st.sampled_from(["a", "b", "c"]),
    st.integers(1, 90),  # prompt tokens
    st.integers(1, 40),  # output tokens
    st.integers(1, 3),  # choices
    st.one_of(st.none(), st.integers(1, 2_000)),  # deadline in ms from now
    st.sampled_from(["t1", "t2", "t10"]),
)
ACTIONS = st.one_of(
    ARRIVALS,
    st.tuples(st.just("steps"), st.integers(1, 12)),
    st.tuples(st.just("abort"), st.integers(1, 30)),
    st.tuples(st.just("finish"), st.integers(1, 30), st.integers(1, 5)),
    st.tuples(st.just("cancel"), st.sampled_from(["a", "b"]), st.sampled_from(["t1", "t10", None])),
    st.tuples(st.just("preempt"), st.integers(1, 30)),
)


def play(world: World, actions) -> None:
    for action in actions:
        match action:
            case ("arrive", tenant, prompt, output, n, timeout, task):
                now = world.clock.now()
                deadline = None if timeout is None else now + timeout * 1_000_000
                world.submit(tenant, prompt, output, n=n, task=task, deadline=deadline)
            case ("steps", count):
                for _ in range(count):
                    world.step()
            case ("abort", number):
                world.apply(Abort((number,), Cause.DISCONNECTED))
            case ("finish", number, keep):
                if number in world.tokens and number not in world.ended:
                    world.apply(Finish(number, min(keep, len(world.tokens[number]))))
            case ("cancel", tenant, task):
                world.apply(Cancel(Scope(tenant, task)))
            case ("preempt", number):
                world.scheduler.preempt(number, world.clock.now())
                world._collect()
    world.run()
    world.check_idle()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(ACTIONS, max_size=40),
    st.integers(9, 40),
    st.integers(1, 8),
    st.sampled_from([1, 2]),
    st.sampled_from([0, 3]),
)
def test_laws_hold_and_every_sequence_ends_once(actions, blocks, slots, in_flight, drafts):
    world = World(
        config(
            num_blocks=blocks,
            max_running=slots,
            max_step_tokens=72,
            max_in_flight=in_flight,
            draft_tokens=drafts,
        )
    )
    play(world, actions)
    for number, finished in world.ended.items():
        if finished.cause in (Cause.LENGTH, Cause.STOP, Cause.STOP_STRING):
            assert finished.output_tokens <= len(world.tokens[number])
        if finished.cause is Cause.LENGTH:
            assert len(world.tokens[number]) == finished.output_tokens


@settings(max_examples=40, deadline=None)
@given(st.lists(ARRIVALS, min_size=1, max_size=12), st.integers(9, 20))
def test_output_does_not_depend_on_memory_pressure(arrivals, blocks):
    """Preemption, chunking, overlap and drafts change when tokens come, never which."""
    roomy, tight = World(config(num_blocks=600)), World(config(num_blocks=blocks))
    overlapped = World(config(num_blocks=blocks, max_in_flight=2))
    drafted = World(config(num_blocks=blocks, draft_tokens=2, max_step_tokens=96))
    worlds = (roomy, tight, overlapped, drafted)
    for world in worlds:
        for _, tenant, prompt, output, n, _, task in arrivals:
            world.submit(tenant, prompt, output, n=n, task=task)
        world.run()
        world.check_idle()
    expected = {
        number: tokens
        for number, tokens in roomy.tokens.items()
        if all(world.ended[number].cause is Cause.LENGTH for world in worlds)
    }
    for world in (tight, overlapped, drafted):
        assert {number: world.tokens[number] for number in expected} == expected


def test_a_tight_pool_preempts_and_still_finishes_everything():
    """Four residents of 5 blocks grow to 9 in a pool of 20: somebody must give way, then return."""
    world = World(config(num_blocks=20, kv_reserve=0.0, max_step_tokens=512))
    numbers = [world.submit("a", 80, 64)[0] for _ in range(4)]
    world.run()
    world.check_idle()
    assert world.of(SequencePreempted)
    assert [world.ended[n].cause for n in numbers] == [Cause.LENGTH] * 4
    assert [len(world.tokens[n]) for n in numbers] == [64] * 4
