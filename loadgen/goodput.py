"""How much work kept its deadlines, and what became of the rest."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from loadgen.record import Fate
from telemetry.events import Cause

COMPLETE = (Cause.STOP, Cause.LENGTH, Cause.STOP_STRING)


def on_time(fate: Fate) -> bool:
    """Whether every deadline that the request has was kept."""
    request = fate.request
    if request.first_token_deadline is not None and (
        fate.first_token is None or fate.first_token > request.first_token_deadline
    ):
        return False
    if request.deadline is not None:
        complete = fate.cause in COMPLETE and fate.ended is not None
        return complete and (fate.ended or 0) <= request.deadline
    return True


def on_time_share(fates: Sequence[Fate]) -> float | None:
    """Share of the requests with a deadline that kept it; None where none has one."""
    bound = _bound(fates)
    return fmean(on_time(fate) for fate in bound) if bound else None


def _bound(fates: Sequence[Fate]) -> list[Fate]:
    return [
        f
        for f in fates
        if f.request.deadline is not None or f.request.first_token_deadline is not None
    ]


def goodput(fates: Sequence[Fate], seconds: float) -> dict[str, Any] | None:
    """Requests on time a second of arrivals; None where no request has a deadline.

    A request counts as refused when it got no compute at all: at its arrival, or dropped later
    while it waited. All others are admitted; `violations` is the share of them not on time.
    `by_prompt` and `by_output` are the shares on time of the shortest, middle and longest third.
    """
    bound = _bound(fates)
    if not bound:
        return None
    at_arrival = sum(1 for f in bound if f.arrived is None)
    dropped = sum(1 for f in bound if f.arrived is not None and f.admitted is None)
    admitted = [f for f in bound if f.admitted is not None]
    missed = sum(1 for f in admitted if not on_time(f))
    refusals = at_arrival + dropped
    return {
        "per_second": sum(1 for f in bound if on_time(f)) / seconds,
        "on_time_share": sum(1 for f in bound if on_time(f)) / len(bound),
        "violations": missed / len(admitted) if admitted else 0.0,
        "refused_share": refusals / len(bound),
        "refused_at_arrival": at_arrival / refusals if refusals else None,
        "by_prompt": _by_third(bound, lambda fate: fate.request.prompt),
        "by_output": _by_third(bound, lambda fate: fate.request.output),
    }


def _by_third(fates: Sequence[Fate], length: Callable[[Fate], int]) -> list[float]:
    ordered = sorted(fates, key=lambda fate: (length(fate), fate.request.origin))
    edges = [round(third * len(ordered) / 3) for third in range(4)]
    thirds = [ordered[start:end] for start, end in pairwise(edges)]
    return [fmean(on_time(fate) for fate in third) if third else 0.0 for third in thirds]
