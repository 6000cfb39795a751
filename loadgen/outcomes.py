"""What each tenant got, folded from the event log: the same way for recorded and simulated runs."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from loadgen.stats import quantile
from telemetry.billing_events import Charge, ServiceCharged
from telemetry.events import (
    Cause,
    Event,
    SequenceArrived,
    SequenceEnded,
    SequencePreempted,
    SequenceRefused,
    SequenceStarted,
)
from telemetry.units import SECOND

COMPLETE = (Cause.STOP, Cause.STOP_STRING, Cause.LENGTH)
SHARES = (0.5, 0.99)


@dataclass(slots=True)
class Outcome:
    """One tenant's run. Times in seconds; sequences count, so n choices count n times."""

    offered: int = 0
    prompt_tokens: int = 0  # computed for the first time
    output_tokens: int = 0
    rework_tokens: int = 0
    cost: float = 0.0  # as charged, before weight
    preemptions: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    first_token: list[float] = field(default_factory=list)
    completion: list[float] = field(default_factory=list)  # of what ran to its own end

    def figures(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "offered": self.offered,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "rework_tokens": self.rework_tokens,
            "cost": self.cost,
            "preemptions": self.preemptions,
            "ttft": _quantiles(self.first_token),
            "completion": _quantiles(self.completion),
            "ended": dict(sorted(self.ended.items())),
        }


def outcomes(events: Iterable[Event]) -> dict[str, Outcome]:
    """By tenant, in alphabetical order."""
    found: dict[str, Outcome] = {}
    tenants: dict[int, str] = {}  # of live sequences

    def of(tenant: str) -> Outcome:
        return found.setdefault(tenant, Outcome())

    for event in events:
        match event:
            case SequenceArrived():
                tenants[event.sequence] = event.lineage.tenant
                of(event.lineage.tenant).offered += 1
            case SequenceRefused():
                of(event.lineage.tenant).offered += 1
                of(event.lineage.tenant).ended[event.cause.value] += 1
            case SequenceStarted():
                waited = (event.now - event.arrived) / SECOND
                of(tenants[event.sequence]).first_token.append(waited)
            case SequencePreempted():
                of(tenants[event.sequence]).preemptions += 1
            case SequenceEnded():
                _end(of(tenants.pop(event.sequence)), event)
            case ServiceCharged():
                for charge in event.charges():
                    _charge(of(charge.flow[0]), charge)
    for tenant in tenants.values():
        of(tenant).ended["unfinished"] += 1
    return dict(sorted(found.items()))


def _end(outcome: Outcome, event: SequenceEnded) -> None:
    outcome.ended[event.cause.value] += 1
    if event.cause in COMPLETE:
        outcome.completion.append((event.now - event.arrived) / SECOND)


def _charge(outcome: Outcome, charge: Charge) -> None:
    outcome.prompt_tokens += charge.prompt_tokens
    outcome.output_tokens += charge.output_tokens
    outcome.rework_tokens += charge.rework_tokens
    outcome.cost += charge.cost


def _quantiles(values: list[float]) -> dict[str, float] | None:
    return {f"p{share * 100:g}": quantile(values, share) for share in SHARES} if values else None
