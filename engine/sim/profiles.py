"""Cost profiles by name."""

from pathlib import Path

from engine.sim.fitted import FittedProfile, ProfileFileError, load_fitted
from engine.sim.profile import A10G_LLAMA2_7B, UNIT_TIME, LinearProfile
from engine.sim.roofline import H100_8B, H200_8B, RooflineProfile

NamedProfile = LinearProfile | RooflineProfile | FittedProfile

PROFILES: dict[str, NamedProfile] = {
    "a10g-llama2-7b": A10G_LLAMA2_7B,
    "h100-8b": H100_8B,
    "h200-8b": H200_8B,
    "unit": UNIT_TIME,
}


def profile_named(name: str) -> NamedProfile:
    """The profile called `name`, or the fitted one in the JSON file of that path.

    Raises ProfileFileError.
    """
    if name in PROFILES:
        return PROFILES[name]
    if name.endswith(".json"):
        return load_fitted(Path(name))
    raise ProfileFileError(
        f"no profile is called {name!r}; known are {', '.join(PROFILES)} and paths of JSON files"
    )
