"""A simulator's cost profile fitted to measured steps.

A device is bound by memory or by arithmetic, so a step's time is taken as the larger of two pieces,
each linear in what the step holds. Which piece a step belongs to is found by alternating between
assigning steps to the larger piece and fitting each piece to its steps (Magnani and Boyd, Convex
piecewise-linear fitting, 2009), from several starting points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from engine.sim.fitted import FittedProfile, Piece
from engine.sim.profile import HostLink, StepShape
from loadgen.step_times import Floats, non_negative

STARTS = (0.2, 0.35, 0.5, 0.65, 0.8)  # share of the steps that begin in the first piece
ROUNDS = 50  # of alternating; it settles within ten or never
LEAST_STEPS = 6  # that a piece is fitted to


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps of one shape: mean seconds in the executor and of the host's work between steps.

    `host` is None where the steps came after idleness.
    """

    shape: StepShape
    device: float
    host: float | None
    steps: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A profile, and its relative error at each measured shape, in their order."""

    profile: FittedProfile
    errors: tuple[float, ...]

    @property
    def mean_error(self) -> float:
        """Mean of the errors' sizes."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def worst_error(self) -> float:
        """The largest error's size."""
        return float(np.max(np.abs(self.errors)))


def fit_profile(measured: Sequence[Measured], link: HostLink) -> Fit:
    """The profile with the least mean relative error found.

    Its overhead is the host's median; what the host takes beyond that with larger steps goes into
    the pieces. ValueError without steps that followed others.
    """
    hosts = [one.host for one in measured if one.host is not None]
    if not hosts:
        raise ValueError("no step was measured right after another")
    overhead = median(hosts)
    seconds = np.array([m.device + (overhead if m.host is None else m.host) for m in measured])
    rows = np.array([_row(one.shape) for one in measured])
    pieces = _pieces(rows, seconds - overhead)
    profile = FittedProfile(
        tuple(Piece(*(1e3 * piece).tolist()) for piece in pieces), 1e3 * overhead, link
    )
    times = [profile.duration(one.shape) / 1e9 for one in measured]
    return Fit(profile, tuple((times / seconds - 1).tolist()))


def _row(shape: StepShape) -> tuple[float, ...]:
    """In the order of `Piece`'s coefficients."""
    return (
        1.0,
        shape.prefill_tokens,
        shape.prefill_context,
        shape.decode_sequences,
        shape.context_tokens,
    )


def _pieces(rows: Floats, seconds: Floats) -> list[Floats]:
    """Coefficients of one or two pieces."""
    everywhere = np.ones(len(rows), np.bool_)
    best = [_fit(rows, seconds, everywhere)]
    tokens = rows[:, 1] + rows[:, 3]
    for share in STARTS:
        found = _alternate(rows, seconds, tokens <= np.quantile(tokens, share))
        if _error(rows, seconds, found) < _error(rows, seconds, best):
            best = found
    return best


def _alternate(rows: Floats, seconds: Floats, first: np.ndarray) -> list[Floats]:
    pieces: list[Floats] = []
    for _ in range(ROUNDS):
        if min(first.sum(), (~first).sum()) < LEAST_STEPS:
            break
        pieces = [_fit(rows, seconds, first), _fit(rows, seconds, ~first)]
        larger = rows @ pieces[0] >= rows @ pieces[1]
        if (larger == first).all():
            break
        first = larger
    return pieces or [_fit(rows, seconds, np.ones(len(rows), np.bool_))]


def _fit(rows: Floats, seconds: Floats, chosen: np.ndarray) -> Floats:
    """Least squares of relative errors; scaled, for contexts are thousands of times the base."""
    scale = rows.max(axis=0)
    scale[scale == 0] = 1.0
    relative = rows[chosen] / scale / seconds[chosen, None]
    coefficients: Floats = non_negative(relative, np.ones(len(relative))) / scale
    return coefficients


def _error(rows: Floats, seconds: Floats, pieces: list[Floats]) -> float:
    predicted = np.max([rows @ piece for piece in pieces], axis=0)
    return float(np.mean(np.abs(predicted / seconds - 1)))
