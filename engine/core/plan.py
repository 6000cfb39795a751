"""What crosses the executor seam: plans down, results up. Plain picklable data only."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class LogitsConstraint(Protocol):
    """Restricts the next token of one sequence (a grammar, a schema). Must be picklable.

    A sequence with a constraint is planned only once its previous token is known on the host.
    An exception raised here fails that sequence alone.
    """

    def allowed(self, output: Sequence[int]) -> Sequence[int]:
        """The token ids that may follow `output`, the tokens generated so far."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; validated at the edge.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 are off. `seed` makes the draw of output
    token i a function of (seed, i) alone. `logprobs` is the number of top alternatives to report
    (0 reports only the token's own), None reports nothing. `stop_token_ids` may not be drawn
    before `min_tokens` output tokens exist and end the sequence afterwards.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    constraint: LogitsConstraint | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """A sequence enters the executor's persistent batch at `slot`.

    `tokens` is everything known so far (prompt, then output when it resumes); `blocks` its block
    table so far. The executor keeps both and appends to them itself.
    """

    slot: int
    sequence: int
    tokens: IntArray
    prompt_length: int
    blocks: IntArray
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Transfer:
    """Move one KV block between the device and the host before the step's forward pass."""

    device_block: int
    host_block: int
    to_host: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One iteration of the model.

    The executor applies it in this order: `left` slots are forgotten, `joined` slots are filled,
    block tables grow by (`grown_slots[i]`, `grown_blocks[i]`), `transfers` run, the forward pass
    computes every row, tokens are sampled, `copies` (source block, target block) run.

    What selects slots and rows is int64: numpy takes other integers as indices at several times the
    cost, and lets another thread have the interpreter's lock meanwhile.

    Rows run in parallel over `sequences`, `slots`, `starts`, `counts`, `drafts`, `samples`,
    `logits_rows` (all of length R). Row r computes positions [starts[r], starts[r] + counts[r]) of
    its sequence. If `samples[r]`, it draws the token that follows from the last logits of row
    `logits_rows[r]` (itself, except for forked choices: they compute nothing, counts[r] == 0, and
    draw their first token from their sibling's row). The last `drafts[r]` positions of a row are
    tokens that the executor proposes itself and verifies in the same pass.
    """

    step: int
    sequences: LongArray
    slots: LongArray
    starts: IntArray
    counts: IntArray
    drafts: IntArray
    samples: BoolArray
    logits_rows: LongArray
    joined: tuple[Join, ...] = ()
    left: tuple[int, ...] = ()
    grown_slots: LongArray = field(default_factory=lambda: np.empty(0, np.int64))
    grown_blocks: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    transfers: tuple[Transfer, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def tokens(self) -> int:
        """Positions computed by this step."""
        return int(self.counts.sum())


class TokenLogprob(NamedTuple):
    """Natural-log probability of a drawn token and of the most likely alternatives."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), most likely first


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row that failed alone; its neighbours are unharmed."""

    numerical: bool  # NaN logits; otherwise the constraint raised
    detail: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step produced. `token_counts` (length R) says how many of `tokens` each row drew:

    0 for a row that does not sample or failed, 1 normally, up to 1 + drafts when drafts were
    accepted. `logprobs` and `failures` are keyed by row and hold only the rows concerned.
    `duration` is in nanoseconds; for `stall` of them the step was held up by its transfers, 0 if it
    has none.
    """

    step: int
    token_counts: IntArray
    tokens: IntArray
    duration: int
    stall: int = 0
    logprobs: dict[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    failures: dict[int, RowFailure] = field(default_factory=dict)
