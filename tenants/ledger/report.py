"""Usage as people and programs ask for it: filtered, and summed up by what they want to compare."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from telemetry.clock import NANOSECONDS
from telemetry.usage import Usage
from tenants.ledger.leftovers import COLUMNS
from tenants.ledger.usage_store import UsageRow, UsageStore

GROUPS = ("tenant", "key", "model", "day", "hour")
HOUR = 3600  # seconds
SUMS = (*COLUMNS[:-1], "device_seconds", "money")  # columns of a line, after what it is for


class TooManyLinesError(Exception):
    """The answer would be longer than the asker can take."""


@dataclass(frozen=True, slots=True)
class Question:
    """Whose usage of what, in the hours that overlap [`begin`, `end`), Unix seconds.

    None means all. `by` is out of GROUPS; each combination that occurs becomes a line.
    """

    begin: int
    end: int
    tenant: str | None = None
    key: str | None = None
    model: str | None = None
    by: tuple[str, ...] = GROUPS[:3]

    @property
    def hours(self) -> range:
        return range(self.begin // HOUR, -(-self.end // HOUR))


@dataclass(slots=True)
class Line:
    """One line of the answer: what it is for, by the names in `by`, and the sums."""

    group: dict[str, str]
    usage: Usage = field(default_factory=Usage)
    money_nanos: int = 0

    def describe(self) -> dict[str, object]:
        """JSON-ready; device time in seconds, money in units of the operator's currency."""
        counts = {column: getattr(self.usage, column) for column in COLUMNS[:-1]}
        seconds = self.usage.device_ns / NANOSECONDS
        return {
            **self.group,
            **counts,
            "device_seconds": seconds,
            "money": self.money_nanos / NANOSECONDS,
        }


async def answer(store: UsageStore, question: Question, most: int) -> list[Line]:
    """The lines, in order of their groups. Raises StoreUnavailable, TooManyLinesError."""
    lines: dict[tuple[str, ...], Line] = {}
    tenants = await store.tenants() if question.tenant is None else [question.tenant]
    for tenant in tenants:
        async for row in store.rows(tenant, question.hours.start, question.hours.stop):
            if _asked(question, row):
                _add(lines, question.by, row)
                if len(lines) > most:
                    raise TooManyLinesError(f"the answer has more than {most} lines")
    return [lines[group] for group in sorted(lines)]


def spell(unix_seconds: int) -> str:
    """RFC 3339 in UTC."""
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _asked(question: Question, row: UsageRow) -> bool:
    return question.key in (None, row.account.key) and question.model in (None, row.model)


def _add(lines: dict[tuple[str, ...], Line], by: Sequence[str], row: UsageRow) -> None:
    group = _group(row, by)
    line = lines.setdefault(tuple(group.values()), Line(group))
    for column in COLUMNS:
        setattr(line.usage, column, getattr(line.usage, column) + getattr(row.usage, column))
    line.money_nanos += row.money_nanos


def _group(row: UsageRow, by: Sequence[str]) -> dict[str, str]:
    hour = spell(row.hour * HOUR)
    whole = {
        "tenant": row.account.tenant,
        "key": row.account.key,
        "model": row.model,
        "day": hour[:10],
        "hour": hour,
    }
    return {name: whole[name] for name in by}
