"""What the kernel hands back to callers after each command and each step."""

from dataclasses import dataclass, field

from engine.core.plan import TokenLogprob
from policies.admission import Forecast
from telemetry.events import Cause


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a sequence. `retry_after` (nanoseconds) is set on transient refusals.

    `refused`: it was turned away at the door, and nothing was done that could be counted.

    Of the prompt, `processed_tokens` were computed or found in the cache, by any choice of the
    request, and `cached_tokens` were found; `output_tokens` are those that the caller pays for.
    `promised`: a place is held for `retry_after`. `forecast` is what was predicted for a request
    refused because of its deadline.
    """

    cause: Cause
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    detail: str = ""
    retry_after: int | None = None
    promised: bool = False
    forecast: Forecast | None = None
    processed_tokens: int = 0
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of one sequence, its end, or both. `logprobs` matches `tokens` or is empty."""

    sequence: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finished: Finished | None = None


@dataclass(slots=True)
class OutputBatch:
    """Everything that callers are to be told after one command or step, as parallel lists.

    Token i belongs to `sequences[i]`; a sequence that drew several tokens appears as often, in
    order. `logprobs` is keyed by the index of the token. The engine thread only fills these lists;
    sorting them out to callers is the reader's work.
    """

    sequences: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    ended: list[tuple[int, Finished]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.sequences or self.ended)
