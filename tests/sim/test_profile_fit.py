"""The fit of a cost profile, and the grid it is measured over."""

from random import Random

import pytest

from engine.sim.fitted import FittedProfile, Piece
from engine.sim.profile import HostLink, StepShape
from loadgen.profile_fit import Measured, fit_profile
from loadgen.profiling import PROMPTS, contexts, grid

LINK = HostLink(5e9, 23_040, overlap=False)
DEVICE = FittedProfile(
    (Piece(16.0, 0.1, 0.0, 0.2, 0.003), Piece(2.0, 0.65, 0.0004, 0.8, 0.001)), 1.5, LINK
)


def shapes() -> list[StepShape]:
    decodes = [
        StepShape(decode_sequences=b, context_tokens=b * c)
        for b in (1, 4, 16, 32, 64)
        for c in (16, 128, 512, 2000)
    ]
    prompts = [
        StepShape(t, t * (start + t // 2), b, b * 200)
        for t in (16, 64, 256, 512)
        for start, b in ((0, 0), (1000, 0), (0, 8), (0, 32))
    ]
    return decodes + prompts


def measured(device: FittedProfile, noise: float = 0.0, *, busy: bool = True) -> list[Measured]:
    random = Random(3)
    found = []
    for shape in shapes():
        seconds = device.duration(shape) / 1e9 - device.overhead / 1e3
        host = device.overhead / 1e3 if busy and shape.decode_sequences else None
        found.append(Measured(shape, seconds * (1 + noise * random.gauss(0, 1)), host, 5))
    return found


def test_a_device_of_two_pieces_is_found_again():
    fit = fit_profile(measured(DEVICE), LINK)
    assert fit.profile.overhead == pytest.approx(1.5)
    assert fit.profile.link == LINK
    assert len(fit.profile.pieces) == 2
    assert fit.mean_error <= 0.002
    assert fit.worst_error <= 0.01
    unseen = StepShape(100, 100 * 300, 12, 12 * 350)
    assert fit.profile.duration(unseen) == pytest.approx(DEVICE.duration(unseen), rel=0.01)


def test_noise_does_not_become_bias():
    fit = fit_profile(measured(DEVICE, noise=0.05), LINK)
    ratios = [fit.profile.duration(s) / DEVICE.duration(s) for s in shapes()]
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.02)
    assert max(ratios) - min(ratios) < 0.25


def test_the_error_is_of_the_whole_step_and_has_a_sign():
    device = FittedProfile((Piece(10.0, 0.0, 0.0, 0.0, 0.0),), 2.0, LINK)
    points = measured(device)
    points[0] = Measured(points[0].shape, 2 * points[0].device, points[0].host, 1)
    fit = fit_profile(points, LINK)
    assert fit.errors[0] == pytest.approx(12 / 22 - 1, abs=0.02)
    assert max(abs(error) for error in fit.errors[1:]) < 0.05


def test_a_fit_needs_steps_that_followed_others():
    with pytest.raises(ValueError, match="right after another"):
        fit_profile(measured(DEVICE, busy=False), LINK)


def test_the_grid_keeps_to_the_cache_and_the_context():
    wide = grid(10**7, 8192)
    assert {(r.decoding, r.context) for r in wide} >= {(64, 2000), (1, 16), (0, 1536)}
    for one in grid(20_000, 1024):
        assert one.decoding * one.context < 20_000
        assert max(contexts(one), default=0) + 256 <= 1024
        assert all(one.context + tokens < 1024 for tokens in one.prompts if not one.decoding)
    assert next(r.prompts for r in grid(20_000, 1024) if r.decoding == 0) == PROMPTS[:-1]
    assert grid(200, 8192) == []


def test_contexts_of_a_batch_spread_around_their_mean():
    one = next(r for r in grid(10**7, 8192) if (r.decoding, r.context) == (32, 512))
    lengths = contexts(one)
    assert len(lengths) == 32
    assert sum(lengths) / 32 == pytest.approx(512, abs=1)
    assert min(lengths) == pytest.approx(264, abs=1)
    assert max(lengths) == pytest.approx(760, abs=1)
