"""Cost profiles: how long a step takes on some device."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step's time depends on."""

    prefill_tokens: int
    decode_sequences: int
    context_tokens: int  # summed over the decoding sequences


class CostProfile(Protocol):
    """A model of step time."""

    def duration(self, shape: StepShape) -> int:
        """Nanoseconds that a step of this shape takes."""
        ...


@dataclass(frozen=True, slots=True)
class LinearProfile:
    """Decode and prefill are each linear; a mixed step adds both. All in milliseconds."""

    decode_base: float
    decode_sequence: float
    decode_context_token: float
    prefill_base: float
    prefill_token: float
    overhead: float

    def duration(self, shape: StepShape) -> int:
        """Nanoseconds that a step of this shape takes."""
        time = self.overhead
        if shape.decode_sequences:
            time += self.decode_base
            time += self.decode_sequence * shape.decode_sequences
            time += self.decode_context_token * shape.context_tokens
        if shape.prefill_tokens:
            time += self.prefill_base if not shape.decode_sequences else 0.0
            time += self.prefill_token * shape.prefill_tokens
        return int(time * 1e6)


# Llama-2-7B on an A10G, fitted to the cost profile of the VTC artifact (OSDI 2024). A mixed step
# counts the prefill intercept once, as the weights are read once.
A10G_LLAMA2_7B = LinearProfile(
    decode_base=16.295,
    decode_sequence=0.2450,
    decode_context_token=0.002018,
    prefill_base=35.84,
    prefill_token=0.21314,
    overhead=2.0,
)
