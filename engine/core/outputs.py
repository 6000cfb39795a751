"""What the kernel hands back to callers after each command and each step."""

from dataclasses import dataclass

from engine.core.plan import TokenLogprob
from telemetry.events import Cause


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a sequence. `retry_after` (nanoseconds) is set on transient refusals.

    `cached_tokens` are prompt tokens found in the prefix cache; `output_tokens` those that the
    caller pays for.
    """

    cause: Cause
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    detail: str = ""
    retry_after: int | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of one sequence, its end, or both. `logprobs` matches `tokens` or is empty."""

    sequence: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finished: Finished | None = None
