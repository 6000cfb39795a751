"""How much running sequences are expected to grow, with lengths known, drawn and capped."""

from math import sqrt

import numpy as np
import pytest

from policies.kv_growth import expected_growth
from policies.output_length import BINS, LengthEstimate

FOREVER = 100_000


def ends_in(place: int) -> np.ndarray:
    """All outputs end in one bin of 16 tokens."""
    hazard = np.zeros(BINS)
    hazard[place:] = 1.0
    return LengthEstimate(hazard).onward


def memoryless(hazard: float) -> np.ndarray:
    """In each bin the same share of outputs ends."""
    return LengthEstimate(np.full(BINS, hazard)).onward


def growth(*sequences: tuple[int, int, int, int], onward: list, deviations: float = 0.0) -> float:
    """Of (tokens held, generated, left, owner)."""
    used, generated, left, owner = np.asarray(sequences, np.int32).T
    return expected_growth(used, generated, left, np.stack(onward), owner, deviations)


def test_with_lengths_known_it_is_the_growth_up_to_the_peak():
    """One ends after 48 more tokens, and the other does not take as much until its own end."""
    sequences = (100, 0, FOREVER, 0), (200, 96, FOREVER, 0)
    assert growth(*sequences, onward=[ends_in(9)]) == 2 * 48
    assert growth(*sequences, onward=[ends_in(9)], deviations=5.0) == 2 * 48


def test_a_large_one_that_ends_soon_makes_room_for_the_others():
    """What the first gives back after 16 tokens is more than what the second takes until 128."""
    sequences = (500, 112, FOREVER, 0), (100, 0, FOREVER, 0)
    assert growth(*sequences, onward=[ends_in(8)]) == 2 * 16
    assert growth(sequences[1], onward=[ends_in(8)]) == 128


def test_nothing_grows_beyond_its_cap():
    assert growth((100, 0, 40, 0), onward=[ends_in(50)]) == 32
    assert growth((100, 0, 15, 0), onward=[ends_in(50)]) == 0


def test_each_owner_has_its_own_lengths():
    sequences = (100, 0, FOREVER, 0), (100, 0, FOREVER, 1)
    assert growth(*sequences, onward=[ends_in(4), ends_in(40)]) == 128 + 512 - 100 - 128
    assert growth(*sequences, onward=[ends_in(4), ends_in(4)]) == 2 * 64


def test_certainty_is_paid_for_with_memory():
    sequences = [(100, 0, FOREVER, 0)] * 4
    assert growth(*sequences, onward=[memoryless(0.25)]) == 0  # 4 · 116 · 0.75 is less than 400
    mean, deviation = 4 * 116 * 0.75, 2 * 116 * sqrt(0.75 * 0.25)
    sure = growth(*sequences, onward=[memoryless(0.25)], deviations=1.0)
    assert sure == pytest.approx(mean + deviation - 400)


def test_it_is_never_more_than_if_nothing_ended():
    assert growth((100, 0, 64, 0), onward=[memoryless(0.01)], deviations=100.0) == 64
