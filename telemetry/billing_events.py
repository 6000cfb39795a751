"""Events of who pays for what a step did."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Charge(NamedTuple):
    """One flow's bill for one step; `cost` is in units before division by weight."""

    flow: tuple[str, ...]
    prompt_tokens: int  # computed for the first time
    output_tokens: int
    rework_tokens: int  # recomputed on this flow's account
    cost: float


class Repeat(NamedTuple):
    """`sequence` computed `tokens` again, at the expense of a tenant's key: whoever caused it."""

    sequence: int
    tenant: str
    key: str
    tokens: int


class Holdup(NamedTuple):
    """For `duration` nanoseconds a step waited for KV that moved for the sake of a tenant's key."""

    flow: tuple[str, ...]
    tenant: str
    key: str
    duration: int


@dataclass(frozen=True, slots=True)
class ServiceCharged:
    """The bills of one step: the fields of `Charge` as columns, an entry a flow.

    One event for all: there may be hundreds in a step. `repeats` is the rework once more, by the
    sequences that did it and by who pays. `holdups` add up to `StepCommitted.stall`.
    """

    now: int
    step: int
    flows: tuple[tuple[str, ...], ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    rework_tokens: tuple[int, ...]
    costs: tuple[float, ...]
    repeats: tuple[Repeat, ...] = ()
    holdups: tuple[Holdup, ...] = ()

    def charges(self) -> Iterator[Charge]:
        """The bills one by one."""
        columns = self.prompt_tokens, self.output_tokens, self.rework_tokens, self.costs
        return map(Charge, self.flows, *columns)


@dataclass(frozen=True, slots=True)
class ExternalServiceCharged:
    """Service another replica gave to a flow."""

    now: int
    flow: tuple[str, ...]
    cost: float
