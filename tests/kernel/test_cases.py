"""Situations that real schedulers got wrong (numbers are those of the project's list of cases)."""

import os
import subprocess
import sys

import numpy as np
import pytest

from engine.core.commands import Abort, Cancel, Drain, ExecutorLost, Finish
from engine.core.plan import RowFailure, Sampling, StepResult
from engine.sim.executor import SimExecutor, counting_tokens
from engine.sim.profile import A10G_LLAMA2_7B
from policies.admission import AdmissionConfig
from policies.config import PolicyConfig
from telemetry.events import (
    CancelApplied,
    Cause,
    SequenceAdmitted,
    SequenceEnded,
    SequenceForked,
    SequencePreempted,
    SequenceRefused,
    StepCommitted,
    StepPlanned,
)
from telemetry.lineage import Scope
from tests.kernel.world import VOCABULARY, World, config

MS = 1_000_000
LENIENT = PolicyConfig(admission=AdmissionConfig(mode="accept", drop_hopeless=False))


def ends(world: World, number: int) -> Cause:
    return world.ended[number].cause


def test_three_long_prompts_and_a_short_one_all_advance():
    """Case 2: the chunk budget is smaller than any of the three."""
    world = World(config(max_context=1024, num_blocks=200))
    long = [world.submit("a", 400, 4)[0] for _ in range(3)]
    (short,) = world.submit("a", 20, 4)
    for _ in range(4):
        world.step()
    planned = {s for e in world.of(StepPlanned) for s in e.sequences}
    assert planned >= {*long, short}
    world.run()
    finish = {e.sequence: e.now for e in world.of(SequenceEnded)}
    assert finish[short] < min(finish[n] for n in long)


def test_a_head_that_lacks_memory_is_passed_a_bounded_number_of_times():
    """Case 3: smaller ones behind it run, but it is not starved."""
    world = World(config(num_blocks=30, kv_reserve=0.0, kv_bypass_limit=5))
    world.submit("a", 100, 100)
    for _ in range(3):
        world.step()
    (large,) = world.submit("a", 400, 4)
    small = [world.submit("a", 16, 8)[0] for _ in range(40)]
    world.run()
    order = [e.sequence for e in world.of(SequenceAdmitted)]
    passed = [n for n in small if order.index(n) < order.index(large)]
    assert len(passed) == 5
    assert ends(world, large) is Cause.LENGTH


def test_a_request_larger_than_the_pool_is_refused_at_once_and_the_queue_goes_on():
    """Case 10."""
    world = World(config(num_blocks=10, max_context=4096))
    (huge,) = world.submit("a", 150, 20)
    (fits,) = world.submit("a", 150, 10)
    assert ends(world, huge) is Cause.TOO_LARGE
    assert "170" not in world.ended[huge].detail
    assert "160 tokens" in world.ended[huge].detail
    world.run()
    assert ends(world, fits) is Cause.LENGTH


def test_a_result_for_a_sequence_cancelled_meanwhile_is_discarded():
    """Case 12: its blocks stay fenced until the step lands; nothing is freed twice."""
    world = World(config(max_in_flight=2))
    (gone,) = world.submit("a", 10, 50)
    (stays,) = world.submit("a", 10, 5)
    for _ in range(4):
        world.step()
    assert world.scheduler.in_flight == 1
    before = len(world.tokens[gone])
    world.apply(Abort((gone,), Cause.DISCONNECTED))
    steps = len(world.of(StepPlanned))
    world.run()
    assert len(world.tokens[gone]) == before
    assert all(gone not in e.sequences for e in world.of(StepPlanned)[steps:])
    assert sum(e.lag_tokens for e in world.of(StepCommitted)) == 1
    assert ends(world, stays) is Cause.LENGTH
    world.check_idle()


@pytest.mark.parametrize("in_flight", [1, 2])
def test_preemption_at_every_step_leaves_the_output_unchanged(in_flight):
    """Case 13, on the simulated executor; the real model's turn is in tests/runtime."""
    calm = World()
    numbers = [calm.submit("a", 40, 12)[0], calm.submit("b", 33, 12)[0]]
    calm.run()
    for at in range(1, 16):
        world = World(config(max_in_flight=in_flight))
        assert [world.submit("a", 40, 12)[0], world.submit("b", 33, 12)[0]] == numbers
        for _ in range(at):
            world.step()
        for number in numbers:
            world.scheduler.preempt(number, world.clock.now())
        world.run()
        assert dict(world.tokens) == dict(calm.tokens), at
        world.check_idle()


def test_a_preempted_sequence_goes_before_fresh_peers_and_keeps_its_cached_prefix():
    """Case 6."""
    world = World(config(max_running=2, num_blocks=64))
    first, second = world.submit("a", 40, 20)[0], world.submit("a", 40, 20)[0]
    fresh = [world.submit("a", 8, 5)[0] for _ in range(3)]
    world.step()
    world.step()
    world.step()
    world.scheduler.preempt(second, world.clock.now())
    world.run()
    admitted = [e for e in world.of(SequenceAdmitted) if e.sequence != first]
    resumed = admitted[1]
    assert (resumed.sequence, resumed.resumed) == (second, True)
    assert resumed.cached_tokens == 32  # two full blocks of its prompt were still there
    assert all(ends(world, n) is Cause.LENGTH for n in fresh)


def test_the_one_who_grows_pays_for_the_recompute_it_causes():
    """`b` stands worse (more served), gives way to `a`, and is not billed for coming back."""
    world = World(config(num_blocks=12, kv_reserve=0.0, max_step_tokens=512))
    world.submit("a", 60, 60)
    world.submit("b", 80, 60, weight=0.5)
    world.run()
    preempted = world.of(SequencePreempted)
    assert preempted
    assert all(e.billed == ("a",) for e in preempted if e.sequence == 2)
    rework = {e.flow: 0 for e in world.charges()}
    for event in world.charges():
        rework[event.flow] += event.rework_tokens
    recomputed = sum(e.recomputed_tokens for e in world.of(SequenceEnded))
    assert sum(rework.values()) == recomputed > 0
    assert sum(e.recomputed_tokens for e in world.of(StepCommitted)) == recomputed


def test_a_deadline_that_passes_in_the_queue_costs_no_forward_pass():
    """Case 14."""
    world = World(config(max_running=1, policy=LENIENT))
    world.submit("a", 10, 60)
    world.step()
    (late,) = world.submit("b", 10, 5, deadline=world.clock.now() + 30 * MS)
    (later,) = world.submit("b", 10, 5, first_token_deadline=world.clock.now() + 30 * MS)
    world.run()
    assert ends(world, late) is Cause.DEADLINE
    assert ends(world, later) is Cause.FIRST_TOKEN_DEADLINE
    assert all({late, later}.isdisjoint(e.sequences) for e in world.of(StepPlanned))
    assert not world.tokens[late]


def test_no_step_is_planned_after_a_deadline_in_mid_decode():
    world = World()
    (number,) = world.submit("a", 10, 500, deadline=world.clock.now() + 200 * MS)
    world.run()
    assert ends(world, number) is Cause.DEADLINE
    last = max(e.now for e in world.of(StepPlanned) if number in e.sequences)
    assert last < 200 * MS + 1
    assert world.ended[number].output_tokens == len(world.tokens[number]) > 0


def test_an_answer_begun_before_its_deadline_may_be_taken_in_part():
    """What its tenant chose for it decides, or that it took late work in for a part."""
    world = World(config(max_running=4, policy=LENIENT))
    due = world.clock.now() + 200 * MS
    partial, failing, by_verdict, overruled = (
        world.submit("a", 10, 500, deadline=due, **chosen)[0]
        for chosen in (
            {"on_expiry": "partial"},
            {},
            {"on_infeasible": "partial"},
            {"on_infeasible": "partial", "on_expiry": "fail"},
        )
    )
    (never_began,) = world.submit("a", 10, 500, deadline=due, on_expiry="partial")
    world.run()
    world.check_idle()
    found = [ends(world, n) for n in (partial, failing, by_verdict, overruled, never_began)]
    late, part = Cause.DEADLINE, Cause.PARTIAL
    assert found == [part, late, part, late, late]
    assert 0 < world.ended[partial].output_tokens == len(world.tokens[partial]) < 500
    assert world.ended[never_began].output_tokens == 0


def test_a_first_token_deadline_no_longer_matters_once_a_token_is_there():
    world = World()
    (number,) = world.submit("a", 10, 30, first_token_deadline=world.clock.now() + 100 * MS)
    world.run()
    assert ends(world, number) is Cause.LENGTH


def test_a_deadline_already_past_is_refused_before_queueing():
    """Case 15, at the kernel: the smallest deadline does not sort first, it ends at once."""
    world = World()
    (number,) = world.submit("a", 10, 5, deadline=0)
    assert ends(world, number) is Cause.DEADLINE
    assert world.of(SequenceRefused)
    assert not world.step()


def test_earliest_deadline_first_then_arrival():
    world = World(config(max_running=1))
    world.submit("a", 10, 5)
    world.step()
    (calm,) = world.submit("a", 10, 2)
    (loose,) = world.submit("a", 10, 2, deadline=world.clock.now() + 90_000 * MS)
    (tight,) = world.submit("a", 10, 2, deadline=world.clock.now() + 80_000 * MS)
    world.run()
    assert [e.sequence for e in world.of(SequenceAdmitted)][1:] == [tight, loose, calm]


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_hang_up_gives_everything_back(steps):
    """Case 16: queued, in prefill, in decode."""
    world = World(config(max_step_tokens=40))
    (number,) = world.submit("a", 60, 50)
    for _ in range(steps):
        world.step()
    world.apply(Abort((number,), Cause.DISCONNECTED))
    world.check_idle()
    (end,) = world.of(SequenceEnded)
    assert end.phase == ("queued", "prefill", "prefill", "decode", "decode")[steps]
    assert end.output_tokens == len(world.tokens[number])


def test_cancelling_a_task_spares_its_namesakes():
    """Case 17: no prefix match, no other tenant, twice is fine."""
    world = World()
    (mine,) = world.submit("a", 10, 20, task="task_1")
    (other_task,) = world.submit("a", 10, 20, task="task_10")
    (other_tenant,) = world.submit("b", 10, 20, task="task_1")
    world.step()
    cancel = Cancel(Scope("a", "task_1"), remember=True)
    world.apply(cancel)
    world.apply(cancel)
    world.run()
    assert ends(world, mine) is Cause.CANCELLED
    assert ends(world, other_task) is ends(world, other_tenant) is Cause.LENGTH
    found = [e.queued + e.prefill + e.decode for e in world.of(CancelApplied)]
    assert found == [1, 0]


def test_a_cancelled_task_refuses_late_arrivals_until_its_tombstone_expires():
    world = World(config(tombstone_ttl=1000 * MS))
    world.apply(Cancel(Scope("a", "t", run="r1"), remember=True))
    (late,) = world.submit("a", 10, 2, task="t", run="r1")
    (other_run,) = world.submit("a", 10, 2, task="t", run="r2")
    assert ends(world, late) is Cause.TASK_CANCELLED
    world.clock.advance(1001 * MS)
    (after,) = world.submit("a", 10, 2, task="t", run="r1")
    world.run()
    assert ends(world, other_run) is ends(world, after) is Cause.LENGTH


def test_a_queued_hang_up_kills_nobodys_decode():
    """Case 18."""
    world = World(config(max_running=1))
    (decoding,) = world.submit("a", 10, 20)
    world.step()
    (queued,) = world.submit("b", 10, 20)
    world.apply(Abort((queued,), Cause.DISCONNECTED))
    world.run()
    assert ends(world, decoding) is Cause.LENGTH
    assert len(world.tokens[decoding]) == 20


def test_queue_caps_hold_in_a_burst():
    """Case 25: check and count are one step; of the tenant, then of all."""
    world = World(config(max_queued_requests=12))
    for _ in range(10):
        world.submit("a", 10, 2, queue_requests=7)
    for _ in range(10):
        world.submit("b", 10, 2)
    causes = [ends(world, n) for n in sorted(world.ended)]
    # b may fill its half of the engine's queue, at the expense of a, which has more.
    assert causes == [Cause.DISPLACED] + [Cause.QUEUE_FULL] * 3 + [Cause.SATURATED] * 4
    assert all(world.ended[n].retry_after > 0 for n in world.ended)
    assert world.scheduler.waiting == 12
    world.run()
    world.check_idle()


def test_queue_caps_count_tokens_too():
    world = World()
    world.submit("a", 60, 2, queue_tokens=100)
    (over,) = world.submit("a", 41, 2, queue_tokens=100)
    (fits,) = world.submit("a", 40, 2, queue_tokens=100)
    assert ends(world, over) is Cause.QUEUE_FULL
    world.run()
    assert ends(world, fits) is Cause.LENGTH


def test_nobody_waits_or_makes_room_for_what_an_empty_queue_does_not_hold():
    world = World(config(max_running=1, max_queued_tokens=200))
    world.submit("a", 10, 2)
    world.step()
    (waiter,) = world.submit("a/other", 60, 2, queue_tokens=100)
    refused = [
        world.submit("a/me", 101, 2, queue_tokens=100),
        world.submit("a/me", 51, 2, n=2, queue_tokens=100),
        world.submit("a/me", 1, 2, n=3, queue_requests=2),
        world.submit("b", 201, 2),
    ]
    for number in (number for numbers in refused for number in numbers):
        assert ends(world, number) is Cause.TOO_LARGE
        assert world.ended[number].retry_after is None
    world.run()
    assert ends(world, waiter) is Cause.LENGTH


def test_bad_tokens_and_duplicates_are_refused_alone():
    world = World()
    (good,) = world.submit("a", 10, 3)
    (bad,) = world.submit("a", [5, VOCABULARY, 6], 3)
    (negative,) = world.submit("a", [-1], 3)
    world.run()
    assert ends(world, bad) is ends(world, negative) is Cause.BAD_TOKEN
    assert ends(world, good) is Cause.LENGTH


def test_draining_refuses_new_work_and_finishes_old():
    world = World()
    (old,) = world.submit("a", 10, 5)
    world.apply(Drain())
    (new,) = world.submit("a", 10, 5)
    world.run()
    assert ends(world, new) is Cause.DRAINING
    assert world.ended[new].retry_after > 0
    assert ends(world, old) is Cause.LENGTH


def test_a_stop_string_keeps_what_it_asks_for_and_counts_the_rest_as_lag():
    world = World()
    (number,) = world.submit("a", 10, 50)
    for _ in range(6):
        world.step()
    assert len(world.tokens[number]) == 6
    world.apply(Finish(number, 4))
    world.submit("a", 10, 2)
    world.run()
    assert world.ended[number].cause is Cause.STOP_STRING
    assert world.ended[number].output_tokens == 4
    assert sum(e.lag_tokens for e in world.of(StepCommitted)) == 2


def test_stop_tokens_end_a_sequence_after_min_tokens():
    rule = counting_tokens(VOCABULARY)

    def draw(join, index):
        return 7 if index >= 3 else rule(join, index)

    world = World(draw=draw)
    sampling = Sampling(temperature=0.0, stop_token_ids=(7,))
    (plain,) = world.submit("a", 10, 9, sampling=sampling)
    patient = Sampling(temperature=0.0, stop_token_ids=(7,), min_tokens=6)
    (later,) = world.submit("a", 10, 9, sampling=patient)
    world.run()
    assert (ends(world, plain), len(world.tokens[plain])) == (Cause.STOP, 4)
    assert (ends(world, later), len(world.tokens[later])) == (Cause.STOP, 7)


def test_choices_share_one_prompt_computed_and_charged_once():
    world = World()
    numbers = world.submit("a", 40, 5, n=3)
    world.run()
    world.check_idle()
    assert len(world.of(SequenceForked)) == 2
    assert sum(e.prompt_tokens for e in world.charges()) == 40
    assert sum(e.rework_tokens for e in world.charges()) == 0
    assert sum(e.output_tokens for e in world.charges()) == 15
    first = world.of(StepCommitted)[0]
    assert first.sequences == numbers
    texts = [tuple(world.tokens[n]) for n in numbers]
    assert len(set(texts)) == 3  # choice i draws with seed + i


def test_choices_survive_the_one_that_computes_their_prompt():
    world = World(config(max_step_tokens=32))
    leader, *rest = world.submit("a", 80, 5, n=3)
    world.step()
    world.apply(Abort((leader,), Cause.DISCONNECTED))
    world.run()
    world.check_idle()
    assert [ends(world, n) for n in rest] == [Cause.LENGTH] * 2
    assert sum(e.prompt_tokens for e in world.charges()) == 80


class Failing(SimExecutor):
    """Row failures for chosen sequences."""

    def __init__(self, bad: int, **fields) -> None:
        super().__init__(A10G_LLAMA2_7B, counting_tokens(VOCABULARY), lambda _d: None, **fields)
        self.bad = bad

    def launch(self, plan):
        result = super().launch(plan)
        rows = np.flatnonzero(plan.sequences == self.bad).tolist()
        if not rows or not plan.samples[rows[0]]:
            return result
        (row,) = rows
        counts = result.token_counts.copy()
        at = int(counts[:row].sum())
        tokens = np.delete(result.tokens, slice(at, at + int(counts[row])))
        counts[row] = 0
        failures = {row: RowFailure(numerical=True, detail="NaN in the logits")}
        return StepResult(result.step, counts, tokens, result.duration, failures=failures)


def test_a_sequence_with_nan_logits_fails_alone():
    world = World(executor=Failing(bad=2))
    first, bad, last = (world.submit("a", 10, 5)[0] for _ in range(3))
    world.run()
    world.check_idle()
    assert ends(world, bad) is Cause.NUMERICAL
    assert ends(world, first) is ends(world, last) is Cause.LENGTH


@pytest.mark.parametrize("in_flight", [1, 2])
def test_what_a_numerical_failure_leaves_in_the_cache_is_found_by_nobody(in_flight):
    """Masked positions count zero times, and zero times NaN is NaN: a bad token late in a chunk

    spoils what the chunk holds before it, which is published before anything is drawn.
    """
    kernel = config(max_in_flight=in_flight, max_step_tokens=64)
    world = World(kernel, executor=Failing(bad=1))
    prompt = list(range(100))
    (bad,) = world.submit("a", prompt, 5)
    world.run()
    assert ends(world, bad) is Cause.NUMERICAL
    (good,) = world.submit("a", [*prompt[:96], 7], 5)
    world.run()
    world.check_idle()
    assert ends(world, good) is Cause.LENGTH
    assert world.ended[good].cached_tokens == 0


def test_a_lost_executor_fails_what_ran_and_keeps_what_waited():
    world = World(config(max_running=1, max_in_flight=2))
    (running,) = world.submit("a", 40, 50)
    (waiting,) = world.submit("a", 40, 5)
    for _ in range(3):
        world.step()
    world.apply(ExecutorLost("device error"))
    assert ends(world, running) is Cause.ENGINE_FAILED
    assert world.scheduler.cached_blocks == 0
    assert world.scheduler.in_flight == 0
    fresh = World(world.config)
    world.loop = type(world.loop)(world.scheduler, fresh.executor, world.clock.now)
    world.run()
    world.check_idle()
    assert ends(world, waiting) is Cause.LENGTH
    assert world.ended[waiting].cached_tokens == 0


HISTORY = """
import sys
sys.path.insert(0, {root!r})
from telemetry.event_log import encode
from tests.kernel.world import World, config
world = World(config(num_blocks=14, max_running=4))
for i in range(30):
    now = world.clock.now()
    world.submit("abc"[i % 3], 5 + 7 * (i % 9), 3 + i % 11, n=1 + i % 2, weight=1 + i % 3,
                 deadline=now + 900_000_000 * (1 + i % 4))
    world.step()
world.run()
sys.stdout.buffer.write(b"".join(encode(event) + b"\\n" for event in world.events))
"""


def test_the_event_log_is_the_same_for_every_hash_seed():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    logs = []
    for seed in ("0", "1", "4242"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", HISTORY.format(root=root)],
            env=environment,
            capture_output=True,
            check=True,
        )
        logs.append(run.stdout)
    assert logs[0].count(b"\n") > 100
    assert logs[0] == logs[1] == logs[2]
