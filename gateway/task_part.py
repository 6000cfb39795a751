"""What one server knows of a task, and the sum of what several do."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from gateway.choices import Usage
from gateway.everywhere import Dated, newest
from gateway.openai_answer import spell_usage
from telemetry.events import Phase
from telemetry.lineage import Scope
from telemetry.task_history import Told

ENDED, REFUSED = "ended", "refused"
STATES = (*map(str, Phase), ENDED, REFUSED)

Winner = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class TaskPart:
    """Counts are of all its sequences, of which the newest are listed. Usage and lag in tokens."""

    states: dict[str, int]
    causes: dict[str, int]
    usage: Usage
    lag: int
    sequences: list[Dated]
    winner: Winner | None


# Another server's part, from JSON; raises ValueError for what is none.
read_part = TypeAdapter(TaskPart).validate_python


def task_part(told: Sequence[Told], winner: Scope | None, epoch: int) -> TaskPart:
    """Of a task's sequences, whose arrivals are in ns after `epoch`, itself in Unix ns."""
    usages = [_usage(one) for one in told]
    dated = [
        (epoch + one.arrived, _sequence(one, usage))
        for one, usage in zip(told, usages, strict=True)
    ]
    return TaskPart(
        states=Counter(map(_state, told)),
        causes=Counter(str(one.cause) for one in told if one.cause is not None),
        usage=_sum(usages),
        lag=sum(one.lag_tokens for one in told),
        sequences=newest([dated]),
        winner=None if winner is None else {"attempt": winner.attempt, "run": winner.run},
    )


def describe(parts: Sequence[TaskPart]) -> dict[str, object]:
    """All parts of a task in one; JSON-ready. On a winner, servers agree."""
    states = sum((Counter(part.states) for part in parts), Counter[str]())
    return {
        "committed": next((part.winner for part in parts if part.winner), None),
        "states": {**dict.fromkeys(STATES, 0), **states},
        "causes": sum((Counter(part.causes) for part in parts), Counter[str]()),
        "usage": spell_usage(_sum([part.usage for part in parts])),
        "cancellation_lag_tokens": sum(part.lag for part in parts),
        "sequences": [one for _, one in newest(part.sequences for part in parts)],
    }


def _sum(usages: Sequence[Usage]) -> Usage:
    return Usage(
        prompt=sum(usage.prompt for usage in usages),
        cached=sum(usage.cached for usage in usages),
        output=sum(usage.output for usage in usages),
    )


def _sequence(told: Told, usage: Usage) -> dict[str, object]:
    lineage = told.lineage
    return {
        "sequence": told.sequence,
        "run": lineage.run,
        "attempt": lineage.attempt,
        "request": lineage.request,
        "state": _state(told),
        "cause": told.cause,
        "ended_in": told.phase if told.cause is not None else None,
        "usage": spell_usage(usage),
        "cancellation_lag_tokens": told.lag_tokens,
    }


def _state(told: Told) -> str:
    if told.cause is None:
        return str(told.phase)
    return REFUSED if told.phase is None else ENDED


def _usage(told: Told) -> Usage:
    if not told.first:
        return Usage(0, 0, told.output_tokens)
    return Usage(told.prompt_tokens, told.cached_tokens, told.output_tokens)
