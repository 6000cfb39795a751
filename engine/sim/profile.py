"""Cost profiles: how long a step takes on some device."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step's time depends on. A row of one token counts as decoding."""

    prefill_tokens: int = 0
    prefill_context: int = 0  # for each prefill token the positions it attends to, summed
    decode_sequences: int = 0
    context_tokens: int = 0  # positions attended to, summed over the decoding sequences
    tokens_out: int = 0  # of KV moved to the host
    tokens_in: int = 0  # of KV moved back


class CostProfile(Protocol):
    """A model of step time."""

    def duration(self, shape: StepShape) -> int:
        """Nanoseconds that a step of this shape takes."""
        ...


@runtime_checkable
class Noisy(Protocol):
    """A profile whose times scatter around those of another one."""

    noise_free: CostProfile


def noise_free(profile: CostProfile) -> CostProfile:
    """The profile without what makes equal steps differ."""
    return profile.noise_free if isinstance(profile, Noisy) else profile


def stall(profile: CostProfile, shape: StepShape) -> int:
    """Nanoseconds for which its transfers hold a step of this shape up, without noise."""
    if not shape.tokens_out and not shape.tokens_in:
        return 0
    exact = noise_free(profile)
    return exact.duration(shape) - exact.duration(replace(shape, tokens_out=0, tokens_in=0))


@dataclass(frozen=True, slots=True)
class HostLink:
    """The way between device and host memory. Both directions carry at once, each at full rate.

    A step's transfers run while it computes, so the step lasts as long as the longer of the two;
    without `overlap` the transfers come first and the step lasts as long as both together.
    """

    bytes_per_second: float = 12e9  # each way
    bytes_per_token: int = 512 * 1024  # of KV
    overlap: bool = True

    def milliseconds(self, shape: StepShape) -> float:
        """Time that the transfers of a step take."""
        tokens = max(shape.tokens_out, shape.tokens_in)
        return 1e3 * tokens * self.bytes_per_token / self.bytes_per_second

    def step(self, compute: float, shape: StepShape, overhead: float) -> int:
        """Nanoseconds of a step that computes for `compute` ms and costs `overhead` ms beside."""
        moving = self.milliseconds(shape)
        busy = max(compute, moving) if self.overlap else compute + moving
        return int((busy + overhead) * 1e6)


DEFAULT_LINK = HostLink()


@dataclass(frozen=True, slots=True)
class LinearProfile:
    """Decode and prefill are each linear; a mixed step adds both. All in milliseconds.

    `prefill_base` is counted once a step, whatever the number of prompts. `mixed_saving` is taken
    off a step that does both, for devices that read the weights only once.
    """

    decode_base: float
    decode_sequence: float
    decode_context_token: float
    prefill_base: float
    prefill_token: float
    overhead: float
    mixed_saving: float = 0.0
    link: HostLink = DEFAULT_LINK

    def duration(self, shape: StepShape) -> int:
        """Nanoseconds that a step of this shape takes."""
        time = 0.0
        if shape.decode_sequences:
            time += self.decode_base
            time += self.decode_sequence * shape.decode_sequences
            time += self.decode_context_token * shape.context_tokens
        if shape.prefill_tokens:
            time += self.prefill_base + self.prefill_token * shape.prefill_tokens
            if shape.decode_sequences:
                time -= self.mixed_saving
        return self.link.step(time, shape, self.overhead)


# Llama-2-7B on an A10G, fitted to the cost profile of the VTC artifact (Sheng et al., OSDI 2024).
A10G_LLAMA2_7B = LinearProfile(
    decode_base=16.295,
    decode_sequence=0.2450,
    decode_context_token=0.002018,
    prefill_base=35.84,
    prefill_token=0.21314,
    overhead=2.0,
)

# Every step lasts one second: for schedules whose right answer is known in steps.
UNIT_TIME = LinearProfile(0.0, 0.0, 0.0, 0.0, 0.0, overhead=1000.0)
