"""The kernel's laws hold on every step of random histories (checked inside World)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.commands import Abort, Cancel, Finish
from policies.admission import CHOICES, MODES, AdmissionConfig
from policies.config import ORDERINGS, PREEMPTIONS, PolicyConfig
from policies.cost import NAMES as COSTS
from policies.cost import CostConfig
from policies.fairness.config import NAMES, FairnessConfig
from telemetry.events import Cause, SequencePreempted
from telemetry.lineage import Scope
from tests.kernel.bursts import bursts
from tests.kernel.memory import CheckingExecutor
from tests.kernel.world import VOCABULARY, World, config, won

ARRIVALS = st.tuples(
    st.just("arrive"),
    st.sampled_from(["a", "b", "b/u1", "b/u2", "c"]),
    st.integers(1, 90),  # prompt tokens
    st.integers(1, 40),  # output tokens
    st.integers(1, 3),  # choices
    st.one_of(st.none(), st.integers(1, 2_000)),  # deadline in ms from now
    st.sampled_from(["t1", "t2", "t10"]),
    st.sampled_from(["a1", "a2", "a3"]),
)
ACTIONS = st.one_of(
    st.tuples(st.just("steps"), st.integers(1, 12)),
    st.tuples(st.just("abort"), st.integers(1, 30)),
    st.tuples(st.just("finish"), st.integers(1, 30), st.integers(1, 5)),
    st.tuples(st.just("cancel"), st.sampled_from(["a", "b"]), st.sampled_from(["t1", "t10", None])),
    st.tuples(st.just("win"), st.sampled_from(["t1", "t10"]), st.sampled_from(["a1", "a2"])),
    st.tuples(st.just("preempt"), st.integers(1, 30)),
)


def play(world: World, actions) -> None:
    for action in actions:
        match action:
            case ("arrive", tenant, prompt, output, n, timeout, task, attempt):
                now = world.clock.now()
                deadline = None if timeout is None else now + timeout * 1_000_000
                world.submit(
                    tenant, prompt, output, n=n, task=task, attempt=attempt, deadline=deadline
                )
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
            case ("win", task, attempt):
                world.apply(won("a", task, attempt))
            case ("preempt", number):
                world.scheduler.preempt(number, world.clock.now())
                world._collect()
    world.run()
    world.check_idle()


POLICIES = st.builds(
    PolicyConfig,
    admission=st.builds(
        AdmissionConfig,
        mode=st.sampled_from(MODES),
        on_infeasible=st.sampled_from(CHOICES),
        urgent_steps=st.sampled_from([0.0, 3.0, 30.0]),
        drop_hopeless=st.booleans(),
        displace=st.booleans(),
        density=st.sampled_from([0.1, 0.9]),
    ),
    cached_prompt_cost=st.sampled_from([0.0, 0.3]),
    urgency_debt=st.sampled_from([0.0, 30.0]),
    tpot_target=st.sampled_from([0.0, 0.05]),
    fairness=st.builds(
        FairnessConfig,
        name=st.sampled_from(NAMES),
        max_lag=st.sampled_from([20.0, 100.0, 1000.0]),
        requests_per_minute=st.sampled_from([1, 1000]),
        quantum=st.just(50.0),
        ageing=st.sampled_from([0.5, float("inf")]),
    ),
    cost=st.builds(CostConfig, name=st.sampled_from(COSTS)),
    ordering=st.sampled_from(ORDERINGS),
    batching=st.sampled_from(["continuous", "continuous", "static"]),
    kv_admission=st.sampled_from(["grow", "grow", "predicted_peak", "reserve"]),
    preemption=st.sampled_from(PREEMPTIONS),
    pause=st.booleans(),
)


@settings(max_examples=100, deadline=None)
@given(
    bursts(ARRIVALS, ACTIONS),
    st.integers(9, 40),
    st.integers(1, 8),
    st.sampled_from([1, 2]),
    st.sampled_from([0, 3]),
    st.sampled_from([0, 5, 100]),
    st.sampled_from([2, 256]),
    POLICIES,
)
def test_laws_hold_and_every_sequence_ends_once(
    actions, blocks, slots, in_flight, drafts, host_blocks, queue, policy
):
    kernel = config(
        tenant_queued_requests=queue,
        num_blocks=blocks,
        max_running=slots,
        max_step_tokens=72,
        max_in_flight=in_flight,
        draft_tokens=drafts,
        host_blocks=host_blocks,
        policy=policy,
    )
    world = World(kernel)
    world.use(CheckingExecutor(VOCABULARY, world.clock.advance))
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
        for _, tenant, prompt, output, n, _, task, _ in arrivals:
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
