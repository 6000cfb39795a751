from collections.abc import Iterable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from telemetry.billing_events import ExternalServiceCharged, ServiceCharged
from telemetry.events import (
    CallAnswered,
    CallSubmitted,
    CancelApplied,
    Cause,
    Event,
    FlowLifted,
    FlowStalled,
    Phase,
    PreemptReason,
    SequenceAdmitted,
    SequenceArrived,
    SequenceEnded,
    SequenceForked,
    SequencePreempted,
    SequenceRefused,
    SequenceStarted,
    Stall,
    StepCommitted,
    StepPlanned,
)
from telemetry.lineage import Lineage, Scope
from telemetry.metrics import MetricsFold, render

MS = 1_000_000


def lineage(tenant: str = "gold") -> Lineage:
    return Lineage(tenant, "task", "run", "attempt", "request")


def arrived(now: int, sequence: int, tenant: str = "gold") -> SequenceArrived:
    return SequenceArrived(now, sequence, lineage(tenant), (tenant,), 10, 5, None, None)


def admitted(
    now: int, sequence: int, *, cached: int = 0, resumed: bool = False
) -> SequenceAdmitted:
    return SequenceAdmitted(now, sequence, 1, 0, cached, resumed)


def preempted(now: int, sequence: int, lost: int) -> SequencePreempted:
    return SequencePreempted(now, sequence, PreemptReason.KV_GROWTH, None, ("gold",), lost, 1)


def ended(now: int, sequence: int, tenant: str = "gold", **fields: Any) -> SequenceEnded:
    values: dict[str, Any] = {
        "cause": Cause.STOP,
        "phase": Phase.DECODE,
        "detail": "",
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "output_tokens": 5,
        "recomputed_tokens": 0,
        "blocks_released": 1,
        "arrived": 0,
        "admitted": 0,
        "first_token": 0,
    }
    return SequenceEnded(now, sequence, lineage(tenant), (tenant,), **(values | fields))


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Every sample by its name and label values in the order of the labels' names."""
    return {
        (
            sample.name.removeprefix("watermaster_"),
            *(v for _, v in sorted(sample.labels.items())),
        ): (sample.value)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def fold(*events: Event, **options: int) -> dict[tuple[str, ...], float]:
    folded = MetricsFold("m", **options)
    for event in events:
        folded.apply(event)
    return samples(folded.render())


def test_the_life_of_a_sequence() -> None:
    found = fold(
        arrived(100 * MS, 1),
        admitted(130 * MS, 1, cached=4),
        SequenceStarted(180 * MS, 1, 100 * MS),
        ended(
            280 * MS,
            1,
            arrived=100 * MS,
            admitted=130 * MS,
            first_token=180 * MS,
            output_tokens=5,
        ),
    )
    assert found["sequences_total", "stop", "m", "gold"] == 1
    assert found["cached_prompt_tokens_total", "m", "gold"] == 4
    assert found["queue_time_seconds_sum", "m", "gold"] == pytest.approx(0.030)
    assert found["time_to_first_token_seconds_sum", "m", "gold"] == pytest.approx(0.080)
    assert found["time_per_output_token_seconds_sum", "m", "gold"] == pytest.approx(0.025)
    assert found["sequence_duration_seconds_sum", "m", "gold"] == pytest.approx(0.180)
    for name in ("queue_time", "time_to_first_token", "time_per_output_token", "sequence_duration"):
        assert found[f"{name}_seconds_count", "m", "gold"] == 1
    assert found["running_sequences", "m", "gold"] == 0
    assert found["waiting_sequences", "m", "gold"] == 0


def test_histograms_are_cumulative_and_include_their_bound() -> None:
    found = fold(
        StepCommitted(0, 1, 2_500_000, (), (), 0, 0, 0),
        StepCommitted(0, 2, 2_500_001, (), (), 0, 0, 0),
        StepCommitted(0, 3, 9_000_000_000, (), (), 0, 0, 0),
    )
    assert found["step_duration_seconds_bucket", "m", "0.001"] == 0
    assert found["step_duration_seconds_bucket", "m", "0.0025"] == 1
    assert found["step_duration_seconds_bucket", "m", "0.005"] == 2
    assert found["step_duration_seconds_bucket", "m", "2.5"] == 2
    assert found["step_duration_seconds_bucket", "m", "+Inf"] == 3
    assert found["step_duration_seconds_count", "m"] == 3
    assert found["step_duration_seconds_sum", "m"] == pytest.approx(9.005000001)


def test_the_slowness_is_that_of_the_newest_step() -> None:
    steps = [StepCommitted(0, n, 1, (), (), 0, 0, 0, slowness=s) for n, s in ((1, 1.0), (2, 1.5))]
    assert fold(*steps)["step_slowness", "m"] == 1.5


def test_one_token_has_no_time_per_token() -> None:
    found = fold(ended(5, 1, output_tokens=1), ended(5, 2, output_tokens=0, first_token=None))
    assert not any(key[0].startswith("time_per_output_token") for key in found)


def test_a_wait_that_was_never_admitted_counts_as_queue_time() -> None:
    found = fold(
        arrived(0, 1),
        ended(40 * MS, 1, cause=Cause.DEADLINE, admitted=None, first_token=None, output_tokens=0),
    )
    assert found["queue_time_seconds_sum", "m", "gold"] == pytest.approx(0.040)
    assert found["queue_time_seconds_count", "m", "gold"] == 1
    assert found["sequences_total", "deadline_exceeded", "m", "gold"] == 1


def test_running_and_waiting_follow_preemption() -> None:
    events = [arrived(0, 1), arrived(0, 2), arrived(0, 3, "bronze")]
    found = fold(*events)
    assert found["waiting_sequences", "m", "gold"] == 2
    assert found["waiting_sequences", "m", "bronze"] == 1
    events += [admitted(1, 1, cached=16), SequenceForked(1, 2, 1, 1, 1, 2)]
    found = fold(*events)
    assert found["running_sequences", "m", "gold"] == 2
    assert found["waiting_sequences", "m", "gold"] == 0
    events.append(preempted(2, 1, 7))
    found = fold(*events)
    assert found["running_sequences", "m", "gold"] == 1
    assert found["waiting_sequences", "m", "gold"] == 1
    events += [admitted(3, 1, cached=32, resumed=True), ended(4, 1), ended(4, 2)]
    found = fold(*events)
    assert found["running_sequences", "m", "gold"] == 0
    assert found["waiting_sequences", "m", "gold"] == 0
    assert found["waiting_sequences", "m", "bronze"] == 1
    assert found["cached_prompt_tokens_total", "m", "gold"] == 16, "a resumption is no new hit"
    assert found["queue_time_seconds_count", "m", "gold"] == 1
    assert found["preemptions_total", "m", "kv_growth"] == 1
    assert found["preempted_tokens_total", "m", "kv_growth"] == 7


def test_service_and_tokens_by_tenant() -> None:
    found = fold(
        ServiceCharged(0, 1, (("gold", "ann"),), (30,), (2,), (1,), (34.5,)),
        ServiceCharged(0, 2, (("gold", "bob"), ("bronze",)), (0, 5), (3, 0), (0, 0), (6.0, 5.0)),
        ExternalServiceCharged(0, ("gold",), 8.0),
    )
    assert found["prompt_tokens_total", "m", "gold"] == 30
    assert found["output_tokens_total", "m", "gold"] == 5
    assert found["recomputed_tokens_total", "m", "gold"] == 1
    assert found["charged_service_total", "m", "gold"] == 40.5
    assert found["charged_service_total", "m", "bronze"] == 5
    assert found["external_service_total", "m", "gold"] == 8


def test_steps_stalls_refusals_and_cancels() -> None:
    found = fold(
        StepPlanned(0, 1, (1, 2), (0, 0), (30, 1), 2, 0, 9, 1, 2),
        StepPlanned(1, 2, (), (), (), 0, 0, 10, 2, 0),
        StepCommitted(2, 1, MS, (1,), (1,), 30, 0, 3),
        FlowStalled(0, ("gold",), Stall.KV_BLOCKS),
        FlowStalled(1, ("gold",), None),
        SequenceRefused(0, 1, lineage(), Cause.QUEUE_FULL, "", 5),
        CancelApplied(0, Scope("gold", "task"), Cause.CANCELLED, 1, 0, 2),
    )
    assert found["step_sequences_sum", "m"] == 2
    assert found["step_sequences_count", "m"] == 1, "an empty plan is no step"
    assert found["step_tokens_sum", "m"] == 31
    assert found["lag_tokens_total", "m"] == 3
    assert found["stalls_total", "kv_blocks", "m"] == 1
    assert found["refusals_total", "queue_full", "m", "gold"] == 1
    assert found["cancelled_sequences_total", "m", "queued"] == 1
    assert found["cancelled_sequences_total", "m", "decode"] == 2


def test_tenants_beyond_the_cap_share_a_label() -> None:
    events = [ended(1, i, f"t{i % 5}") for i in range(10)]
    found = fold(*events, max_tenants=2)
    assert found["sequences_total", "stop", "m", "t0"] == 2
    assert found["sequences_total", "stop", "m", "t1"] == 2
    assert found["sequences_total", "stop", "m", "other"] == 6
    assert sum(key[0] == "sequences_total" for key in found) == 3


def test_live_state_is_bounded_and_dropped_at_the_end() -> None:
    folded = MetricsFold("m", max_live=3)
    for sequence in range(10):
        folded.apply(arrived(0, sequence))
    assert sorted(folded._live) == [7, 8, 9]
    assert samples(folded.render())["waiting_sequences", "m", "gold"] == 3
    folded.apply_all(ended(1, sequence) for sequence in range(10))
    assert not folded._live
    assert samples(folded.render())["waiting_sequences", "m", "gold"] == 0
    assert samples(folded.render())["sequences_total", "stop", "m", "gold"] == 10


def test_dropped_events_are_counted_and_leave_no_ghosts() -> None:
    folded = MetricsFold("m")
    folded.apply_all([arrived(0, 1), admitted(0, 1), arrived(0, 2)])
    folded.note_dropped(0)
    assert samples(folded.render())["running_sequences", "m", "gold"] == 1
    folded.note_dropped(7)
    folded.note_dropped(7)
    folded.apply_all([ended(1, 2), SequenceStarted(1, 1, 0), arrived(2, 3)])
    found = samples(folded.render())
    assert found["events_dropped_total", "m"] == 7
    assert found["running_sequences", "m", "gold"] == 0
    assert found["waiting_sequences", "m", "gold"] == 1
    assert found["time_to_first_token_seconds_count", "m", "other"] == 1
    folded.note_dropped(9)
    assert samples(folded.render())["events_dropped_total", "m"] == 9


def test_every_kind_of_event_is_folded_or_left_out_on_purpose() -> None:
    left_out = set(get_args(Event)) - set(MetricsFold("m")._handlers)
    assert left_out == {FlowLifted, CallSubmitted, CallAnswered}


def test_engines_share_families() -> None:
    first, second = MetricsFold("a"), MetricsFold("b")
    first.apply(ended(1, 1))
    second.apply_all([ended(1, 1), ended(1, 2)])
    text = render([first, second])
    assert text.count(b"# TYPE watermaster_sequences_total counter") == 1
    found = samples(text)
    assert found["sequences_total", "stop", "a", "gold"] == 1
    assert found["sequences_total", "stop", "b", "gold"] == 2


def test_folds_share_nothing() -> None:
    MetricsFold("m").apply(ended(1, 1))
    assert ("sequences_total", "stop", "m", "gold") not in fold()


def test_label_values_are_escaped() -> None:
    found = fold(ended(1, 1, 'a"b\\c\n'))
    assert found["sequences_total", "stop", "m", 'a"b\\c\n'] == 1


def events_of_lives(lives: list[tuple[int, int, bool]]) -> Iterable[Event]:
    for sequence, (tenant, preemptions, ends) in enumerate(lives):
        yield arrived(0, sequence, f"t{tenant}")
        yield admitted(1, sequence)
        for _ in range(preemptions):
            yield preempted(2, sequence, 1)
            yield admitted(3, sequence, resumed=True)
        if ends:
            yield ended(4, sequence, f"t{tenant}")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=30))
def test_arrivals_are_ended_or_live(lives: list[tuple[int, int, bool]]) -> None:
    folded = MetricsFold("m", max_tenants=2)
    folded.apply_all(events_of_lives(lives))
    running = sum(folded.running.values.values())
    assert running == len(folded._live) == sum(not ends for _, _, ends in lives)
    assert sum(folded.waiting.values.values()) == 0
    assert sum(folded.sequences.values.values()) == sum(ends for _, _, ends in lives)
    assert len(folded.running.values) <= 3
