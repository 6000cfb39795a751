"""The simulated device of a scenario."""

from dataclasses import dataclass, replace
from math import inf

from engine.sim.fitted import ProfileFileError
from engine.sim.jitter import JitteredProfile
from engine.sim.profile import CostProfile, HostLink, LinearProfile
from engine.sim.profiles import NamedProfile, profile_named
from loadgen.tables import ScenarioError


@dataclass(frozen=True, slots=True)
class Device:
    """A cost profile, by name or as the path of a fitted one, and what to change in it.

    `jitter` is the standard deviation of a step's time as a share of it. Transfers run beside a
    step's computation (duration = the longer of the two + overhead), or before it without
    `swap_overlap`.
    """

    profile: str = "a10g-llama2-7b"
    overhead_ms: float | None = None
    mixed_saving_ms: float | None = None
    jitter: float = 0.0
    swap_bytes_per_second: float | None = None
    kv_bytes_per_token: int | None = None
    swap_overlap: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter must be in [0, 1), not {self.jitter}")
        for name in ("overhead_ms", "mixed_saving_ms"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < inf:
                raise ValueError(f"{name} must be finite and at least 0, not {value}")
        for name in ("swap_bytes_per_second", "kv_bytes_per_token"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                raise ValueError(f"{name} must be finite and above 0, not {value}")

    def noise_free(self) -> NamedProfile:
        """The profile with the changes, without jitter. Raises ScenarioError."""
        try:
            profile = profile_named(self.profile)
        except ProfileFileError as error:
            raise ScenarioError(f"device.profile: {error}") from None
        link = profile.link
        rate, size = self.swap_bytes_per_second, self.kv_bytes_per_token
        link = HostLink(
            bytes_per_second=link.bytes_per_second if rate is None else rate,
            bytes_per_token=link.bytes_per_token if size is None else size,
            overlap=self.swap_overlap,
        )
        profile = replace(profile, link=link)
        if self.overhead_ms is not None:
            profile = replace(profile, overhead=self.overhead_ms)
        if self.mixed_saving_ms is not None:
            if not isinstance(profile, LinearProfile):
                raise ScenarioError(f"device.mixed_saving_ms does not apply to {self.profile}")
            profile = replace(profile, mixed_saving=self.mixed_saving_ms)
        return profile

    def build(self, seed: int) -> CostProfile:
        """The profile of one run."""
        profile = self.noise_free()
        return JitteredProfile(profile, self.jitter, seed) if self.jitter else profile
