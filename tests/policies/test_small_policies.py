"""Chunking, victim selection, costs and estimates."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.chunking import chunk_tokens
from policies.cost import CostConfig, Linear, make_cost
from policies.estimates import DrainRate
from policies.ordering import order_key
from policies.preemption import Candidate, choose_victim


@pytest.mark.parametrize(
    ("remaining", "budget", "others", "granted"),
    [
        (100, 512, True, 100),  # finishes: no need to leave anything
        (512, 512, True, 512),
        (4000, 512, False, 512),  # alone: everything
        (4000, 512, True, 256),  # leaves half to those behind
        (4000, 40, True, 32),  # but never less than the minimum
        (4000, 20, True, 20),
    ],
)
def test_chunks(remaining, budget, others, granted):
    assert chunk_tokens(remaining, budget, 32, others) == granted


@given(st.integers(1, 9000), st.integers(1, 4096), st.integers(1, 64), st.booleans())
def test_chunks_fit_and_make_progress(remaining, budget, least, others):
    granted = chunk_tokens(remaining, budget, least, others)
    assert 1 <= granted <= min(remaining, budget)


def candidate(sequence: int, served: float, arrived: int, freed: int = 4) -> Candidate:
    key = order_key("edf", preempted=False, deadline=None, arrived=arrived, sequence=sequence)
    return Candidate(sequence, (served,), key, freed)


def test_the_victim_is_the_last_in_line_of_the_most_served_flow():
    victims = [candidate(1, 10, 5), candidate(2, 90, 1), candidate(3, 90, 7), candidate(4, 50, 9)]
    assert choose_victim(victims).sequence == 3


def test_counters_of_different_parents_are_not_compared():
    split = replace(candidate(1, 0, 1), served=(90.0, 5.0))
    whole = replace(candidate(2, 0, 2), served=(40.0,))
    assert choose_victim([split, whole]).sequence == 1


def test_a_victim_whose_blocks_are_shared_gains_nothing():
    """Case 8."""
    assert choose_victim([candidate(1, 90, 1, freed=0), candidate(2, 10, 1)]).sequence == 2
    assert choose_victim([candidate(1, 90, 1, freed=0)]) is None


def test_the_order_is_total():
    key = {"ordering": "edf", "preempted": False, "deadline": None, "arrived": 3}
    assert order_key(sequence=1, **key) < order_key(sequence=2, **key)
    assert order_key("edf", preempted=True, deadline=None, arrived=9, sequence=9) < order_key(
        "edf", preempted=False, deadline=1, arrived=0, sequence=0
    )


def test_cost_is_linear_and_validated():
    cost = Linear(0.5, 3.0)
    assert cost.prompt(10, 20) == 5
    assert cost.outputs(*np.array([[10.0], [2.0], [4.0]])).tolist() == [12.0]
    with pytest.raises(ValueError, match="output_weight"):
        CostConfig("linear", 1, float("nan"))


@given(st.integers(0, 100), st.integers(0, 50))
def test_profiled_cost_is_the_papers_and_the_same_in_parts(prompt_cut, output_cut):
    """h(100, 50) by hand: 1.146 + 21.002 + 5.038 + 19.934 + 8.118 ms."""
    cost = make_cost(CostConfig("profiled"))
    parts = [cost.prompt(0, prompt_cut), cost.prompt(prompt_cut, 100)]
    for before, more in ((0, output_cut), (output_cut, 50 - output_cut)):
        (part,) = cost.outputs(*np.array([[100], [before], [more]], np.int32)).tolist()
        parts.append(part)
    assert sum(parts) == pytest.approx(55.23792804, abs=1e-6)


def test_device_time_charges_what_steps_took():
    """Steps of 30 ms for 10 positions: 3 ms each, whichever they are."""
    cost = make_cost(CostConfig("device_time"))
    assert cost.prompt(0, 7) == 7.0  # before anything is known
    for _ in range(300):
        cost.observe(0.03, 10)
    assert cost.prompt(5, 9) == pytest.approx(12.0)
    assert cost.outputs(*np.array([[100], [20], [3]], np.int32)).tolist() == [pytest.approx(9.0)]


def test_drain_rate_follows_what_is_measured():
    rate = DrainRate()
    assert rate.seconds_per_token == 0.0
    for _ in range(200):
        rate.observe(64, 0.5)
    assert rate.seconds_per_token == pytest.approx(1 / 128)
    for _ in range(200):
        rate.observe(64, 0.25)
    assert rate.seconds_per_token == pytest.approx(1 / 256, rel=0.01)
