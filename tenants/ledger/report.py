"""Usage as people and programs ask for it: filtered, and summed up by what they want to compare."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from telemetry.units import SECOND
from telemetry.usage import COLUMNS, Usage
from tenants.ledger.usage_store import UsageRow, UsageStore
from tenants.prices import NANOS

GROUPS = ("tenant", "key", "model", "day", "hour")
HOUR = 3600  # seconds
DEFAULT_SPAN = 30 * 86_400  # seconds
_SECONDS = re.compile("[0-9]{1,7}|[0-9]{9,12}")  # eight digits are a date
_LATEST = 253_370_764_800  # the beginning of the year 9999
SUMS = (*COLUMNS[:-1], "device_seconds", "money")  # columns of a line, after what it is for


class InvalidQuestionError(ValueError):
    """A part of a question makes no sense; `name` says which, and the text is a sentence."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


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
        return {
            **self.group,
            **counts,
            "device_seconds": self.usage.device_ns / SECOND,
            "money": self.money_nanos / NANOS,
        }


async def answer(store: UsageStore, question: Question, most: int) -> list[Line]:
    """The lines, in order of their groups. Raises StoreUnavailable, TooManyLinesError."""
    lines: dict[tuple[str, ...], Line] = {}
    begin, end = question.hours.start, question.hours.stop
    tenants = await store.tenants(begin) if question.tenant is None else [question.tenant]
    async for row in store.rows(tenants, begin, end):
        if _asked(question, row):
            _add(lines, question.by, row)
            if len(lines) > most:
                raise TooManyLinesError(f"the answer has more than {most} lines")
    return [lines[group] for group in sorted(lines)]


def read_question(
    given: Mapping[str, str], now: int, groups: Sequence[str], tenant: str | None = None
) -> Question:
    """The question in texts `from`, `to`, `key`, `model` and `by`; what is left out is its default:

    the last 30 days, everything, by key and model. `now` is in Unix seconds; `by` names `groups`,
    with commas. Raises InvalidQuestionError.
    """
    begin = read_instant("from", given["from"]) if "from" in given else now - DEFAULT_SPAN
    end = read_instant("to", given["to"]) if "to" in given else now + 1
    if begin >= end:
        raise InvalidQuestionError("from", "'from' must lie before 'to'.")
    by = tuple(name for name in given.get("by", "key,model").split(",") if name)
    if len(set(by)) < len(by) or not set(by) <= set(groups):
        raise InvalidQuestionError("by", f"'by' may name each of {', '.join(groups)} once.")
    return Question(begin, end, tenant, given.get("key"), given.get("model"), by)


def read_instant(name: str, text: str) -> int:
    """Unix seconds of a date, an RFC 3339 instant or Unix seconds. Raises InvalidQuestionError."""
    try:
        if _SECONDS.fullmatch(text):
            instant = int(text)
        else:
            moment = datetime.fromisoformat(text)
            instant = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        instant = -1
    if not 0 <= instant < _LATEST:
        raise InvalidQuestionError(
            name, f"'{name}' must be a date, an RFC 3339 time or Unix seconds, up to the year 9998."
        )
    return instant


def as_csv(by: Sequence[str], lines: Iterable[Line]) -> str:
    """A line of names first, as RFC 4180 has it."""
    text = io.StringIO()
    table = csv.DictWriter(text, (*by, *SUMS), lineterminator="\r\n")
    table.writeheader()
    table.writerows(line.describe() for line in lines)
    return text.getvalue()


def spell(unix_seconds: int) -> str:
    """RFC 3339 in UTC."""
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _asked(question: Question, row: UsageRow) -> bool:
    return question.key in (None, row.account.key) and question.model in (None, row.model)


def _add(lines: dict[tuple[str, ...], Line], by: Sequence[str], row: UsageRow) -> None:
    group = _group(row, by)
    line = lines.setdefault(tuple(group.values()), Line(group))
    line.usage.add(row.usage)
    line.money_nanos += row.money_nanos


def _group(row: UsageRow, by: Sequence[str]) -> dict[str, str]:
    return {name: _TOLD[name](row) for name in by}


@lru_cache(maxsize=4096)
def _spelled_hour(hour: int) -> str:
    return spell(hour * HOUR)


_TOLD: Mapping[str, Callable[[UsageRow], str]] = {
    "tenant": lambda row: row.account.tenant,
    "key": lambda row: row.account.key,
    "model": lambda row: row.model,
    "day": lambda row: _spelled_hour(row.hour)[:10],
    "hour": lambda row: _spelled_hour(row.hour),
}
