"""The typed event log: every decision of the kernel, with its cause.

Metrics, traces, usage and explanations are folds over these events, so they cannot disagree.
All times are monotonic nanoseconds passed into the kernel. Events hold plain data only.
"""

from dataclasses import dataclass
from enum import StrEnum

from telemetry.admission_events import (
    DeadlineInfeasible,
    PromiseBooked,
    PromiseClaimed,
    PromiseLapsed,
    SequenceDisplaced,
)
from telemetry.billing_events import ExternalServiceCharged, ServiceCharged
from telemetry.lineage import Lineage, Scope


class Cause(StrEnum):
    """Why a sequence ended. Closed: each sequence ends with exactly one of these, once."""

    STOP = "stop"  # a stop or end-of-sequence token
    STOP_STRING = "stop_string"  # the detokeniser found a stop string
    LENGTH = "length"  # the output cap or the context was reached
    CANCELLED = "cancelled"  # asked for through the API
    LOST_RACE = "lost_race"  # another attempt of its task was committed
    DISCONNECTED = "disconnected"  # the caller hung up
    SLOW_READER = "slow_reader"  # the caller did not read its stream
    SHUTDOWN = "shutdown"  # the grace period of a drain ended
    DEADLINE = "deadline_exceeded"  # the deadline passed
    PARTIAL = "partial"  # it passed, and the tenant takes what there was by then
    FIRST_TOKEN_DEADLINE = "first_token_deadline_exceeded"  # passed before any token
    QUEUE_FULL = "queue_full"  # the tenant's own queue is at its cap
    SATURATED = "saturated"  # the queue of the whole engine is at its cap
    DRAINING = "draining"  # the server takes no new work
    TOO_LARGE = "too_large"  # can never fit the context or the KV pool
    BAD_TOKEN = "bad_token"  # a token id outside the vocabulary
    DUPLICATE = "duplicate"  # the sequence id is already in use
    TASK_CANCELLED = "task_cancelled"  # arrived under a task that was cancelled
    RACE_OVER = "race_over"  # arrived under a task of which another attempt was committed
    NUMERICAL = "numerical_error"  # the model produced NaN for this sequence
    CONSTRAINT = "constraint_error"  # the sequence's logits constraint failed
    DEADLINE_INFEASIBLE = "deadline_infeasible"  # predicted at arrival to miss its deadline
    RELEGATED = "relegated"  # given up in the queue: the deadline could no longer be met
    DISPLACED = "displaced"  # made room in a full queue for a flow below its share
    ENGINE_FAILED = "engine_failed"  # the executor died; the engine restarts


class Stall(StrEnum):
    """Why a flow's first waiter was not admitted. Counted by cause."""

    SLOTS = "slots"
    STEP_BUDGET = "step_budget"
    KV_BLOCKS = "kv_blocks"
    SHARE = "share"  # others are served less for their weight: it is not the flow's turn


class PreemptReason(StrEnum):
    """Why running work was taken back."""

    KV_GROWTH = "kv_growth"  # a running sequence needed a block and none was left
    LAG = "lag"  # a backlogged flow lagged the victim's by more than the bound
    URGENT = "urgent"  # a waiter was about to miss its first-token deadline
    FORCED = "forced"  # fault injection


class PreemptMode(StrEnum):
    """What becomes of the victim's KV."""

    PAUSE = "pause"  # kept; only the slot is given up
    SWAP = "swap"  # moved to the host
    RECOMPUTE = "recompute"  # dropped


class Phase(StrEnum):
    """Where a live sequence stands, as told to people."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class SequenceArrived:
    now: int
    sequence: int
    lineage: Lineage
    flow: tuple[str, ...]
    prompt_tokens: int
    max_tokens: int
    deadline: int | None
    first_token_deadline: int | None


@dataclass(frozen=True, slots=True)
class SequenceRefused:
    """Never queued: no service was given and no state is kept."""

    now: int
    sequence: int
    lineage: Lineage
    cause: Cause
    detail: str
    retry_after: int | None  # nanoseconds
    promised: bool = False  # a place is held for that moment


@dataclass(frozen=True, slots=True)
class SequenceAdmitted:
    now: int
    sequence: int
    step: int
    slot: int
    cached_tokens: int
    resumed: bool  # after a preemption or a pause
    swapped_blocks: int = 0  # KV blocks moved back from the host for it


@dataclass(frozen=True, slots=True)
class SequenceForked:
    """A further choice that starts from the KV blocks of the prompt its sibling computed."""

    now: int
    sequence: int
    step: int
    slot: int
    parent: int
    shared_blocks: int


@dataclass(frozen=True, slots=True)
class SequencePreempted:
    now: int
    sequence: int
    reason: PreemptReason
    beneficiary: int | None  # the sequence that needed the room
    billed: tuple[str, ...]  # the flow that pays for the recompute
    tokens_lost: int  # computed tokens whose KV was dropped
    blocks_freed: int  # blocks nobody else shares
    mode: PreemptMode = PreemptMode.RECOMPUTE
    swapped_blocks: int = 0  # KV blocks moved to the host
    predicted_cost: int = 0  # nanoseconds by which computing again or moving KV will lengthen steps


@dataclass(frozen=True, slots=True)
class SequenceStarted:
    """The first output token was committed."""

    now: int
    sequence: int
    arrived: int


@dataclass(frozen=True, slots=True)
class SequenceEnded:
    """The one terminal event of a sequence that was queued."""

    now: int
    sequence: int
    lineage: Lineage
    flow: tuple[str, ...]
    cause: Cause
    phase: Phase  # where it stood when it ended
    detail: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    recomputed_tokens: int
    blocks_released: int
    arrived: int
    admitted: int | None
    first_token: int | None
    processed_tokens: int = 0  # of the prompt, computed or cached, by any choice of the request


@dataclass(frozen=True, slots=True)
class StepPlanned:
    """One step's batch; the arrays run in parallel, one entry a slice."""

    now: int
    step: int
    sequences: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    running: int
    waiting: int
    free_blocks: int
    cached_blocks: int
    held_blocks: int


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """What a step did. `prompt_tokens` were computed for the first time, `recomputed` again."""

    now: int
    step: int
    duration: int
    sequences: tuple[int, ...]  # those that received output tokens
    output_tokens: tuple[int, ...]  # how many each received
    prompt_tokens: int
    recomputed_tokens: int
    lag_tokens: int  # computed for sequences that had ended or lost their place meanwhile
    stall: int = 0  # nanoseconds of `duration` for which moves of KV held it up
    slowness: float = 1.0  # times as long as usual that steps had been taking before it


@dataclass(frozen=True, slots=True)
class FlowLifted:
    """A flow came back from idle: saved-up credit is void, excess from while nobody waited too."""

    now: int
    flow: tuple[str, ...]
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class FlowStalled:
    """What keeps the first waiter (`sequence`) of a flow waiting changed.

    None when nobody waits any more. SHARE is over with the flow's next such event, and for each
    sequence when it is admitted or ends.
    """

    now: int
    flow: tuple[str, ...]
    cause: Stall | None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class CancelApplied:
    """How many live sequences a cancellation found, by phase; what `spare` covers goes on."""

    now: int
    scope: Scope
    cause: Cause
    queued: int
    prefill: int
    decode: int
    spare: Scope | None = None
    received: int | None = None  # when the caller's word came


@dataclass(frozen=True, slots=True)
class CallSubmitted:
    """The gateway handed a call to the engine. `received` is when its head had been read."""

    now: int
    received: int
    lineage: Lineage
    sequences: tuple[int, ...]  # its choices, in order


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """A call's answer was written to its last byte, given up, or turned out to be an error."""

    now: int
    sequences: tuple[int, ...]


Event = (
    SequenceArrived
    | SequenceRefused
    | DeadlineInfeasible
    | SequenceDisplaced
    | PromiseBooked
    | PromiseClaimed
    | PromiseLapsed
    | SequenceAdmitted
    | SequenceForked
    | SequencePreempted
    | SequenceStarted
    | SequenceEnded
    | StepPlanned
    | StepCommitted
    | ServiceCharged
    | ExternalServiceCharged
    | FlowLifted
    | FlowStalled
    | CancelApplied
    | CallSubmitted
    | CallAnswered
)
