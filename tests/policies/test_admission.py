"""The admission decision, the density gate and the memory gate."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.admission import (
    AdmissionConfig,
    Decision,
    DensityGate,
    Forecast,
    Ground,
    Verdict,
    Wish,
    decide,
    memory_claim,
    memory_over,
    planned_seconds,
)
from telemetry.units import SECOND
from tenants.choices import OnInfeasible

# Starts in 2 s, first token in 3 s, ends in 13 s: 100 tokens of 0.1 s.
FORECAST = Forecast(start=2.0, first_token=3.0, finish=13.0, token=0.1)


def verdict(**wish) -> tuple[Verdict, int, Ground | None]:
    decision = decide(Wish(100, **wish), FORECAST)
    return decision.verdict, decision.max_tokens, decision.ground


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({}, (Verdict.ADMIT, 100, None)),
        ({"first_token_in": 3.0, "finish_in": 13.0}, (Verdict.ADMIT, 100, None)),
        ({"first_token_in": 2.9}, (Verdict.REJECT, 100, Ground.FIRST_TOKEN)),
        ({"finish_in": 12.9}, (Verdict.REJECT, 100, Ground.COMPLETION)),
        (
            {"finish_in": 5.0, "on_infeasible": OnInfeasible.DEGRADE},
            (Verdict.DEGRADE, 21, Ground.COMPLETION),
        ),
        (
            {"finish_in": 5.0, "on_infeasible": OnInfeasible.PARTIAL},
            (Verdict.PARTIAL, 100, Ground.COMPLETION),
        ),
        # With no time for a first token there is nothing to shorten or to deliver in part.
        (
            {"finish_in": 2.5, "on_infeasible": OnInfeasible.DEGRADE},
            (Verdict.REJECT, 100, Ground.COMPLETION),
        ),
        (
            {"finish_in": 2.5, "on_infeasible": OnInfeasible.PARTIAL},
            (Verdict.REJECT, 100, Ground.COMPLETION),
        ),
        (
            {"finish_in": 5.0, "on_infeasible": OnInfeasible.ROUTE},
            (Verdict.ROUTE, 100, Ground.COMPLETION),
        ),
        ({"finish_in": 90.0, "on_infeasible": OnInfeasible.ROUTE}, (Verdict.ADMIT, 100, None)),
        ({"finish_in": 0.1, "on_infeasible": OnInfeasible.ACCEPT}, (Verdict.ADMIT, 100, None)),
    ],
)
def test_decisions(wish, expected):
    assert verdict(**wish) == expected


def test_a_closed_gate_rejects_only_what_has_a_deadline():
    closed = decide(Wish(100, finish_in=60.0), FORECAST, Ground.DENSITY)
    assert closed == Decision(Verdict.REJECT, 100, Ground.DENSITY)
    assert decide(Wish(100), FORECAST, Ground.DENSITY).verdict is Verdict.ADMIT


@given(
    st.sampled_from(OnInfeasible),
    st.floats(0, 20),
    st.floats(0, 20),
    st.floats(0, 20),
    st.integers(1, 500),
)
def test_degraded_work_fits_its_deadline(choice, finish_in, start, length, cap):
    forecast = Forecast(start, start + 0.2, start + 0.2 + length, 0.05)
    decision = decide(Wish(cap, finish_in=finish_in, on_infeasible=choice), forecast)
    assert 1 <= decision.max_tokens <= cap
    if decision.verdict is Verdict.DEGRADE:
        end = forecast.first_token + (decision.max_tokens - 1) * forecast.token
        assert end <= finish_in + 1e-9
    if finish_in >= forecast.finish:
        assert decision == Decision(Verdict.ADMIT, cap)


def gate_of(costs: list[float], gap: float = 1.0, window: int = 200) -> tuple[DensityGate, int]:
    gate, now = DensityGate(window), 0
    for cost in costs:
        gate.observe(now, cost)
        now += int(gap * SECOND)
    return gate, now


def test_the_density_gate_is_open_below_the_rate():
    gate, now = gate_of([0.5] * 100)
    assert gate.load(now) == pytest.approx(0.5)
    assert gate.threshold(now, 0.9) == inf


def test_the_density_gate_keeps_the_cheapest_that_fit():
    """Costs 0.5 and 2 in turn, one a second: the cheap ones take 0.25 of 0.9, and each dear one

    takes 0.01 more, so they are cut; at 1.3 they all pass.
    """
    gate, now = gate_of([0.5, 2.0] * 50)
    assert gate.threshold(now, 0.2) == 0.5
    assert gate.threshold(now, 0.9) == 2.0
    assert gate.threshold(now, 0.249) == 0.5
    assert gate.threshold(now, 1.3) == inf


def test_the_gate_needs_arrivals_to_tell_a_rate():
    gate, now = gate_of([100.0] * 10)
    assert (gate.load(now), gate.threshold(now, 0.1)) == (0.0, inf)


@given(st.lists(st.floats(0.01, 5), min_size=20, max_size=100), st.floats(0.05, 2))
def test_what_passes_loads_no_more_than_the_rate(costs, rate):
    gate, now = gate_of(costs)
    limit = gate.threshold(now, rate)
    cheaper = [cost for cost in costs if cost < limit]
    if limit < inf:
        assert sum(cheaper) / (now / SECOND) <= rate + 1e-9
    else:
        assert sum(costs) / (now / SECOND) <= rate + 1e-9


def test_the_memory_gate_leaves_room_for_several_of_a_size():
    config = AdmissionConfig(memory_slack=0.08, memory_room=4.0)
    assert memory_claim(100, 10_000, config) == 400
    assert memory_over(10_400, 400, 10_000, config) == pytest.approx(0.0)
    assert memory_over(10_401, 400, 10_000, config) == pytest.approx(1.0)


def test_a_large_request_is_let_in_when_half_of_the_memory_is_free():
    config = AdmissionConfig(memory_slack=0.0, memory_room=4.0)
    assert memory_claim(2_000, 10_000, config) == 5_000
    assert memory_claim(6_000, 10_000, config) == 6_000  # it needs more than half by itself


def test_most_of_the_time_to_a_deadline_is_taken_to_be_meant_for_the_output():
    config = AdmissionConfig(waiting_share=0.1)
    assert planned_seconds(10.0, 0.5, config) == pytest.approx(8.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "best"},
        {"length_quantile": 1.0},
        {"density": 0.0},
        {"density": float("nan")},
        {"density_window": 1},
        {"memory_slack": -1.0},
        {"on_infeasible": "hope"},
        {"memory_room": 0.9},
        {"waiting_share": 1.1},
        {"urgent_steps": -1.0},
    ],
)
def test_configuration_is_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AdmissionConfig(**wrong)
