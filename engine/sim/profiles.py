"""Cost profiles by name."""

from pathlib import Path

from engine.sim.fitted import ProfileFileError, load_fitted
from engine.sim.profile import A10G_LLAMA2_7B, UNIT_TIME, CostProfile
from engine.sim.roofline import H100_8B, H200_8B

PROFILES: dict[str, CostProfile] = {
    "a10g-llama2-7b": A10G_LLAMA2_7B,
    "h100-8b": H100_8B,
    "h200-8b": H200_8B,
    "unit": UNIT_TIME,
}


def profile_named(name: str) -> CostProfile:
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
