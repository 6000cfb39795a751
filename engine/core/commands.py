"""Commands: the only way anything outside changes the kernel. Plain picklable data."""

from dataclasses import dataclass

from engine.core.plan import IntArray, Sampling
from telemetry.events import Cause
from telemetry.lineage import Lineage, Scope


@dataclass(frozen=True, slots=True)
class FlowNode:
    """One level of a flow's path: its name among its siblings, its weight, and its priority.

    Higher priority is sooner; only the `priority` policy looks at it.
    """

    name: str
    weight: float = 1.0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Submit:
    """Ask for `len(sequences)` choices of one prompt.

    The prompt is computed and charged once; choice i draws with `sampling.seed + i`.
    `prompt` is int32 of shape [tokens]; `block_hashes` are those of `engine.core.hashing` for its
    full blocks over `salt`, computed by the caller so that the engine thread does not. `deadline`
    and `first_token_deadline` are monotonic nanoseconds. `queue_requests` and `queue_tokens` cap
    what the tenant (the first node of `flow`) may have waiting. `tpot_target` is the time per
    output token, in seconds, that its decodes should keep; `admission`, `on_infeasible` and
    `on_expiry` are the tenant's choices; None takes the policy's. `claims` are names (task,
    idempotency key) under which a refused caller is recognised when it returns; `retry` says that
    it is a return.
    """

    lineage: Lineage
    sequences: tuple[int, ...]
    flow: tuple[FlowNode, ...]
    prompt: IntArray
    salt: bytes
    block_hashes: tuple[bytes, ...]
    max_tokens: int
    sampling: Sampling
    deadline: int | None = None
    first_token_deadline: int | None = None
    queue_requests: int | None = None
    queue_tokens: int | None = None
    tpot_target: float | None = None
    admission: str | None = None
    on_infeasible: str | None = None
    on_expiry: str | None = None
    claims: tuple[str, ...] = ()
    retry: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """End everything under `scope`. With `remember`, later arrivals under it are refused too.

    What `spare` covers goes on: it has won the race of all under `scope`. `received` is when the
    caller's word came, in monotonic nanoseconds; what is computed after it came too late.
    """

    scope: Scope
    cause: Cause = Cause.CANCELLED
    remember: bool = False
    spare: Scope | None = None
    received: int | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """End exactly these sequences: the edge's own reasons, such as a hang-up."""

    sequences: tuple[int, ...]
    cause: Cause


@dataclass(frozen=True, slots=True)
class Finish:
    """The detokeniser found a stop string: keep `output_tokens` tokens, discard what follows."""

    sequence: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class ExternalService:
    """Another replica served this flow: count `amount` (cost units) against its share."""

    flow: tuple[FlowNode, ...]
    amount: float


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse all further work; what is queued or running goes on."""


@dataclass(frozen=True, slots=True)
class ExecutorLost:
    """The executor died with everything in its memory: running work fails, waiting work stays."""

    detail: str


Command = Submit | Cancel | Abort | Finish | ExternalService | Drain | ExecutorLost
