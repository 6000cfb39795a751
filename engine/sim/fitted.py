"""A profile fitted to a running engine, kept as JSON."""

import json
from dataclasses import dataclass
from pathlib import Path

from engine.sim.profile import DEFAULT_LINK, HostLink, StepShape

COEFFICIENTS = (
    "base",
    "prefill_token",
    "prefill_context",
    "decode_sequence",
    "context_token",
)


class ProfileFileError(Exception):
    """A profile file that cannot be used, in one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One linear piece of step time, in milliseconds per unit of the step's shape."""

    base: float
    prefill_token: float
    prefill_context: float
    decode_sequence: float
    context_token: float

    def milliseconds(self, shape: StepShape) -> float:
        """The piece at `shape`."""
        return (
            self.base
            + self.prefill_token * shape.prefill_tokens
            + self.prefill_context * shape.prefill_context
            + self.decode_sequence * shape.decode_sequences
            + self.context_token * shape.context_tokens
        )


@dataclass(frozen=True, slots=True)
class FittedProfile:
    """The largest of several linear pieces, plus an overhead in milliseconds."""

    pieces: tuple[Piece, ...]
    overhead: float = 0.0
    link: HostLink = DEFAULT_LINK

    def duration(self, shape: StepShape) -> int:
        """Nanoseconds that a step of this shape takes."""
        compute = max(piece.milliseconds(shape) for piece in self.pieces)
        return self.link.step(max(0.0, compute), shape, self.overhead)


def load_fitted(path: Path) -> FittedProfile:
    """Read a profile: {"pieces": [{coefficient: ms, …}, …], "overhead": ms, "link": {…}}.

    A coefficient that a piece leaves out is 0; "overhead" and "link" may be left out. Raises
    ProfileFileError.
    """
    try:
        raw = json.loads(path.read_text())
    except OSError as error:
        raise ProfileFileError(f"cannot read profile {path}: {error.strerror}") from None
    except ValueError as error:
        raise ProfileFileError(f"profile {path} is not JSON: {error}") from None
    try:
        pieces = tuple(_piece(table) for table in raw["pieces"])
        profile = FittedProfile(pieces, float(raw.get("overhead", 0)), _link(raw.get("link", {})))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProfileFileError(f"profile {path} has the wrong form: {error}") from None
    if not pieces:
        raise ProfileFileError(f"profile {path} has no pieces")
    return profile


def dump_fitted(profile: FittedProfile, path: Path, about: dict[str, object]) -> None:
    """Write `profile` so that `load_fitted` reads it; `about` says where it comes from."""
    pieces = [{name: getattr(piece, name) for name in COEFFICIENTS} for piece in profile.pieces]
    table = {
        "about": about,
        "pieces": pieces,
        "overhead": profile.overhead,
        "link": {
            "bytes_per_second": profile.link.bytes_per_second,
            "bytes_per_token": profile.link.bytes_per_token,
            "overlap": profile.link.overlap,
        },
    }
    path.write_text(json.dumps(table, indent=2) + "\n")


def _piece(table: dict[str, float]) -> Piece:
    unknown = sorted(set(table) - set(COEFFICIENTS))
    if unknown:
        raise ValueError(f"unknown coefficient {unknown[0]!r}; known are {', '.join(COEFFICIENTS)}")
    return Piece(**{name: float(table.get(name, 0.0)) for name in COEFFICIENTS})


def _link(table: dict[str, float]) -> HostLink:
    return HostLink(**table)  # type: ignore[arg-type] # a wrong key is a TypeError
