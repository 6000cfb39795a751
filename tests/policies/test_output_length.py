"""Output-length estimates: right for known distributions, with censoring, bounded."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.output_length import BIN_TOKENS, LengthHistory, OutputLengths

lengths = st.lists(st.integers(1, 3000), max_size=60)


def history(tokens, finished=True) -> LengthHistory:
    result = LengthHistory()
    for value in tokens:
        result.observe(value, finished=finished)
    return result


def test_the_prior_is_uniform_over_the_bins():
    estimate = LengthHistory().estimate()
    assert estimate.mean == pytest.approx(512.5)
    assert estimate.quantile(0.5) == 512
    assert estimate.second_moment == pytest.approx(512.5**2 + (1024**2 - 16**2) / 12)


def test_moments_and_quantiles_of_an_exponential_length():
    random = Random(3)
    estimate = history([1 + int(random.expovariate(1 / 200)) for _ in range(1500)]).estimate()
    assert estimate.mean == pytest.approx(200, rel=0.08)
    assert estimate.second_moment == pytest.approx(2 * 200**2, rel=0.2)
    assert estimate.quantile(0.5) == pytest.approx(139, abs=BIN_TOKENS)
    assert estimate.remaining(200) == pytest.approx(200, rel=0.15)  # no memory


def test_work_that_was_cut_off_does_not_look_short():
    """Half of all outputs are cut at 100 tokens; all would have ended at 300."""
    seen = LengthHistory()
    for index in range(400):
        cut = index % 2 == 0
        seen.observe(100 if cut else 300, finished=not cut)
    assert seen.estimate().mean == pytest.approx(300, rel=0.05)


def test_a_cap_shortens_what_is_expected():
    estimate = history([400] * 200).estimate()
    mean, second = estimate.moments(100)
    assert mean == pytest.approx(100, rel=0.02)
    assert second == pytest.approx(100**2, rel=0.02)
    assert estimate.moments(5000) == (estimate.mean, estimate.second_moment)


@given(lengths, lengths)
def test_every_estimate_is_a_distribution(finished, cut):
    seen = history(finished)
    for value in cut:
        seen.observe(value, finished=False)
    estimate = seen.estimate()
    assert np.all((estimate.hazard >= 0) & (estimate.hazard <= 1))
    assert 8.5 <= estimate.mean <= 1016.5
    assert estimate.second_moment >= estimate.mean**2 - 1e-6
    quantiles = [estimate.quantile(share) for share in (0.0, 0.1, 0.5, 0.9, 1.0)]
    assert quantiles == sorted(quantiles)
    assert all(0 < estimate.remaining(g) <= 1024 for g in (0, 1, 500, 1023, 99999))


def test_old_habits_fade():
    seen = history([100] * 3000)
    for _ in range(4000):
        seen.observe(500, finished=True)
    assert seen.estimate().mean > 420
    assert seen.count <= 2000


def test_tenants_are_told_apart_and_newcomers_believed_like_all():
    outputs = OutputLengths()
    for _ in range(100):
        outputs.observe("short", 20, finished=True)
        outputs.observe("long", 700, finished=True)
    assert outputs.of("short").mean < 60
    assert outputs.of("long").mean > 600
    assert outputs.of("new") is outputs.overall()
    assert outputs.of("long") is outputs.of("long")
    outputs.observe("new", 20, finished=True)
    assert outputs.of("short").mean < outputs.of("new").mean < outputs.of("long").mean


def test_tenants_remembered_are_bounded():
    outputs = OutputLengths(capacity=3)
    for name in "abcad":
        outputs.observe(name, 50, finished=True)
        assert outputs.of(name).mean < 512
    assert len(outputs) == 3
    assert outputs.of("b") is outputs.overall()  # the least recently used is gone
    with pytest.raises(ValueError, match="at least 1"):
        OutputLengths(0)
