"""The usage of every account, folded step by step, against what the kernel says it did."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.commands import Abort, Finish
from engine.core.preempt import preempt
from engine.sim.asynchronous import AsynchronousExecutor
from engine.sim.profile import A10G_LLAMA2_7B, HostLink
from telemetry.events import (
    Cause,
    PreemptReason,
    SequenceEnded,
    SequencePreempted,
    StepCommitted,
)
from telemetry.usage import Account, Usage, UsageFold
from tests.kernel.test_bills import ACTIONS, POLICIES, play
from tests.kernel.world import World, config


class Metered(World):
    """Folds what the host would hand to the journal: the events of each turn, apart."""

    def __init__(self, *arguments, **named) -> None:
        super().__init__(*arguments, **named)
        self.fold = UsageFold()
        self.used: dict[Account, Counter[str]] = {}

    def _collect(self) -> None:
        before = len(self.events)
        super()._collect()
        for account, usage in self.fold.fold(self.events[before:]).items():
            total = self.used.setdefault(account, Counter())
            for column in Usage.__dataclass_fields__:
                total[column] += getattr(usage, column)

    def total(self, column: str) -> int:
        return sum(usage[column] for usage in self.used.values())


@settings(max_examples=100, deadline=None)
@given(
    ACTIONS,
    POLICIES,
    st.integers(10, 24),  # blocks
    st.integers(1, 6),  # slots
    st.sampled_from([1, 2]),  # steps in flight
    st.booleans(),  # prefix cache
    st.sampled_from([0, 20]),  # host blocks
)
def test_the_accounts_add_up_to_what_the_kernel_did(
    actions, policy, blocks, slots, in_flight, prefix_cache, host_blocks
):
    kernel = config(
        num_blocks=blocks,
        max_running=slots,
        kv_reserve=0.0,
        max_in_flight=in_flight,
        prefix_cache=prefix_cache,
        policy=policy,
        host_blocks=host_blocks,
    )
    world = Metered(kernel, profile=replace(A10G_LLAMA2_7B, link=HostLink(2e8, overlap=False)))
    play(world, actions)
    ends = world.of(SequenceEnded)
    for tenant in "abc":
        used = world.used.get(Account(tenant, ""), Counter())
        own = [end for end in ends if end.lineage.tenant == tenant]
        assert used["requests"] == len(own)  # of one choice each
        assert used["output_tokens"] == sum(end.output_tokens for end in own)
        assert used["recomputed_tokens"] == sum(end.recomputed_tokens for end in own)
        started = sum(end.prompt_tokens for end in own if end.first_token is not None)
        others = sum(end.prompt_tokens for end in own if end.first_token is None)
        assert started <= used["prompt_tokens"] <= started + others
        assert used["cached_tokens"] <= used["prompt_tokens"]
        billed = [bill for bill in world.charges() if bill.flow == (tenant,)]
        assert used["rework_tokens"] == sum(bill.rework_tokens for bill in billed)
    steps = world.of(StepCommitted)
    assert world.total("device_ns") == sum(step.duration for step in steps)
    lag = sum(step.lag_tokens for step in steps)
    assert world.total("aborted_tokens") <= lag
    if not world.of(SequencePreempted):
        assert world.total("aborted_tokens") == lag
        if all(end.first_token is not None for end in ends):
            computed = sum(bill.prompt_tokens for bill in world.charges())
            assert world.total("prompt_tokens") - world.total("cached_tokens") == computed
    assert not world.fold._lives


def test_a_prompt_counts_once_for_all_choices_and_what_is_cached_is_part_of_it():
    world = Metered()
    prompt = list(range(1, 101))
    world.submit("a", prompt, 4, n=3, key="k1")
    world.run()
    world.submit("a", prompt, 4, key="k2")
    world.run()
    first, second = world.used[Account("a", "k1")], world.used[Account("a", "k2")]
    assert (first["requests"], first["prompt_tokens"], first["cached_tokens"]) == (1, 100, 0)
    assert first["output_tokens"] == 12
    assert (second["prompt_tokens"], second["cached_tokens"]) == (100, 96)  # whole blocks of 16


def test_tokens_beyond_a_stop_string_and_after_a_hang_up_are_aborted_not_output():
    world = Metered(config(max_in_flight=2))
    world.use(AsynchronousExecutor(world.executor))
    stopped, left = world.submit("a", 10, 50, key="s") + world.submit("a", 10, 50, key="l")
    while len(world.tokens[stopped]) < 8:
        world.step()
    world.apply(Finish(stopped, 5))
    world.apply(Abort((left,), Cause.DISCONNECTED))
    handed_out = len(world.tokens[left])
    world.run()
    first, second = world.used[Account("a", "s")], world.used[Account("a", "l")]
    assert first["output_tokens"] == 5
    assert first["aborted_tokens"] == 3 + 1  # those beyond the five, and the row in flight
    assert second["output_tokens"] == handed_out
    assert second["aborted_tokens"] == 1  # the row in flight
    assert world.total("aborted_tokens") == sum(e.lag_tokens for e in world.of(StepCommitted))


def test_rework_is_the_victims_work_at_the_causers_expense_by_key():
    world = Metered(config(max_running=2, prefix_cache=False))
    (victim,) = world.submit("a", 40, 30, key="ka")
    for _ in range(6):
        world.step()
    (other,) = world.submit("b", 10, 1, key="kb")
    state = world.scheduler._state
    preempt(
        state,
        state.sequences[victim],
        PreemptReason.KV_GROWTH,
        state.sequences[other],
        world.clock.now(),
    )
    world._collect()
    world.run()  # `other` is over long before its victim is back
    (lost,) = world.of(SequencePreempted)
    a, b = world.used[Account("a", "ka")], world.used[Account("b", "kb")]
    assert a["recomputed_tokens"] == b["rework_tokens"] == lost.tokens_lost > 0
    assert a["rework_tokens"] == b["recomputed_tokens"] == 0
    assert a["prompt_tokens"] == 40
    assert b["device_ns"] > 0
