"""Fluid weighted sharing, against a slow simulation of it and against hand-made cases."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.drain import MEMORY, Departures, Level, drained_by, fair_rates

weights = st.floats(0.1, 10)
amounts = st.floats(0, 100)
siblings = st.lists(st.tuples(weights, amounts), max_size=6)


def simulated(own: float, weight: float, others: list[tuple[float, float]]) -> float:
    """Serve at rate 1 by weight, from one flow running dry to the next."""
    left, backlogs, time = own, [list(pair) for pair in others], 0.0
    while left > 1e-12:
        active = [pair for pair in backlogs if pair[1] > 1e-12]
        total = weight + sum(v for v, _ in active)
        span = min([left * total / weight, *(b * total / v for v, b in active)])
        time += span
        left -= span * weight / total
        for pair in active:
            pair[1] -= span * pair[0] / total
    return time


@given(st.floats(0.01, 100), weights, siblings)
def test_the_formula_is_the_fluid(own, weight, others):
    expected = simulated(own, weight, others)
    assert drained_by(own, [Level(weight, others)]) == pytest.approx(expected, rel=1e-6)


def test_two_levels():
    """A user with 2 units beside one with 10, in a tenant of weight 3 beside one with weight 1."""
    user = Level(1.0, [(1.0, 10.0)])
    tenant = Level(3.0, [(1.0, 1.0)])
    assert drained_by(2.0, [user]) == 4.0
    assert drained_by(2.0, [user, tenant]) == 4.0 + 1.0
    assert drained_by(2.0, [user, Level(3.0, [(1.0, 100.0)])]) == pytest.approx(4.0 + 4.0 / 3)


@given(st.floats(0.01, 50), st.floats(0, 10), weights, siblings)
def test_more_work_takes_longer_and_nobody_overtakes_time(own, more, weight, others):
    levels = [Level(weight, others)]
    assert own <= drained_by(own, levels) <= drained_by(own + more, levels)
    assert drained_by(own, levels) <= own + sum(backlog for _, backlog in others) + 1e-9


@given(st.lists(st.tuples(weights, amounts), min_size=1, max_size=8), st.floats(0.1, 100))
def test_rates_are_max_min_fair(demands, capacity):
    rates = fair_rates(demands, capacity)
    assert all(rate <= demand + 1e-9 for rate, (_, demand) in zip(rates, demands, strict=True))
    wanted = sum(demand for _, demand in demands)
    assert sum(rates) == pytest.approx(min(capacity, wanted), rel=1e-6, abs=1e-9)
    levels = [
        rate / weight
        for rate, (weight, demand) in zip(rates, demands, strict=True)
        if rate < demand - 1e-9
    ]
    satisfied = [r / w for r, (w, d) in zip(rates, demands, strict=True) if r >= d - 1e-9]
    if levels:
        assert max(levels) == pytest.approx(min(levels), rel=1e-6)
        assert all(level <= min(levels) * (1 + 1e-6) for level in satisfied)


def test_departures_from_a_slow_machine_count_as_at_its_usual_speed():
    slow, usual = Departures(), Departures()
    for second in range(10):
        slow.observe(6 * second * 10**9, 0, 40, slowness=6.0)
        usual.observe(second * 10**9, 0, 40)
    fading = [exp(-6 * second / MEMORY) for second in range(8)]
    assert slow.seconds == pytest.approx(sum(fading))
    assert slow.seconds / slow.sequences == pytest.approx(usual.seconds / usual.sequences)


def test_departures_count_while_somebody_waits_through():
    """The first has none before it, and nobody waited all the time from the second to the third."""
    seen = Departures()
    for at, waits_since, tokens in ((10, 3, 500), (12, 3, 40), (16, 13, 9), (18, 13, 60)):
        seen.observe(at * 10**9, waits_since * 10**9, tokens)
    fading = exp(-2 / MEMORY)
    assert seen.seconds == pytest.approx(2 * fading + 2)
    assert seen.sequences == pytest.approx(fading + 1)
    assert seen.tokens == pytest.approx(40 * fading + 60)
