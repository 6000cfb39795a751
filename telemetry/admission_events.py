"""Events of admission: predictions that refuse, promises, displacement. See `telemetry.events`."""

from dataclasses import dataclass

from telemetry.lineage import Lineage


@dataclass(frozen=True, slots=True)
class DeadlineInfeasible:
    """A submission was predicted to miss a deadline, or a goodput gate was closed to it.

    `start`, `first_token` and `finish` are the instants predicted if it were taken in as it is.
    """

    now: int
    sequence: int  # the first of its choices
    lineage: Lineage
    flow: tuple[str, ...]
    verdict: str  # reject, route, degrade, partial, or trial (taken in to test this)
    ground: str  # first_token, completion, density or memory
    start: int
    first_token: int
    finish: int
    deadline: int | None
    first_token_deadline: int | None
    max_tokens: int  # the output cap that holds from now on


@dataclass(frozen=True, slots=True)
class SequenceDisplaced:
    """A waiter is about to end for a newcomer: its flow has the most beyond its share."""

    now: int
    sequence: int
    flow: tuple[str, ...]
    beneficiary: int
    beneficiary_flow: tuple[str, ...]
    queued_tokens: int  # of the node of the tree that exceeds its share
    queue_cap: int  # tokens


@dataclass(frozen=True, slots=True)
class PromiseBooked:
    """A refused caller was told when to return, and a place is held for it then."""

    now: int
    promise: int
    sequence: int  # that was refused
    flow: tuple[str, ...]
    due: int


@dataclass(frozen=True, slots=True)
class PromiseClaimed:
    now: int
    promise: int
    sequence: int  # that returned
    flow: tuple[str, ...]
    due: int


@dataclass(frozen=True, slots=True)
class PromiseLapsed:
    """Nobody returned in time."""

    now: int
    promise: int
    flow: tuple[str, ...]
    due: int
