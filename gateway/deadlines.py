"""Deadlines on the wire, and their one conversion to monotonic nanoseconds.

`x-deadline` holds an instant (RFC 3339, or Unix milliseconds), `x-timeout-ms` the time that is
left; `x-first-token-deadline` and `x-first-token-timeout-ms` say the same of the first token. When
both of a pair are sent the earlier instant counts. A tenant may set a default and a ceiling.

Stock clients resend the same headers when they retry, so the first `x-timeout-ms` seen under a task
id fixes the task's deadline: later calls of the task can end earlier, not later.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.errors import ApiError, Reason
from policies.fair_table import FairTable
from telemetry.clock import Clock
from telemetry.events import Cause
from telemetry.units import MILLISECOND

# Long enough for any call, short enough that no arithmetic below the edge can overflow.
FURTHEST_MS = 31 * 24 * 3600 * 1000
# 1973 in milliseconds, the year 5138 in seconds: below it the caller meant seconds.
SECONDS_BELOW = 10**11

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_WHOLE = re.compile(r"[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Both in monotonic nanoseconds; None where there is none."""

    end: int | None = None
    first_token: int | None = None


class TaskDeadlines:
    """The deadline that the first `x-timeout-ms` of each task fixed; tenants share the room."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._fixed: FairTable[str, int] = FairTable(capacity)

    def fix(self, tenant: str, task: str, deadline: int) -> int:
        """The deadline (monotonic ns) that counts for a call of `task` that asks for `deadline`."""
        first = self._fixed.get(tenant, task)
        if first is None:
            self._fixed.put(tenant, task, deadline)
            return deadline
        return min(first, deadline)


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """A tenant's default and ceiling for the time a call may take, in milliseconds."""

    default_ms: int | None = None
    max_ms: int | None = None


def read_deadlines(headers: Mapping[str, str], clock: Clock) -> tuple[Deadlines, Deadlines]:
    """The instants of `x-…deadline` and those of `x-…timeout-ms`, apart.

    Raises ApiError: 400 for anything that is not a date or a time, 504 for an instant that passed.
    """
    now, wall = clock.now(), clock.wall()
    instants = Deadlines(
        _instant(headers, "x-deadline", now, wall, Cause.DEADLINE),
        _instant(headers, "x-first-token-deadline", now, wall, Cause.FIRST_TOKEN_DEADLINE),
    )
    timeouts = Deadlines(
        _timeout(headers, "x-timeout-ms", now),
        _timeout(headers, "x-first-token-timeout-ms", now),
    )
    return instants, timeouts


def resolve(
    instants: Deadlines, timeouts: Deadlines, now: int, limits: TimeLimits = TimeLimits()
) -> Deadlines:
    """The deadlines that count: the earliest asked for, else the default, within the ceiling."""
    end = _earliest(instants.end, timeouts.end)
    if end is None and limits.default_ms is not None:
        end = now + limits.default_ms * MILLISECOND
    if limits.max_ms is not None:
        end = _earliest(end, now + limits.max_ms * MILLISECOND)
    if end is not None and end <= now:
        raise ApiError(Cause.DEADLINE, facts={"cause": str(Cause.DEADLINE)})
    return Deadlines(end, _earliest(instants.first_token, timeouts.first_token))


def _earliest(*instants: int | None) -> int | None:
    return min((instant for instant in instants if instant is not None), default=None)


def _timeout(headers: Mapping[str, str], name: str, now: int) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    value = int(text) if _WHOLE.fullmatch(text) else 0
    if not 1 <= value <= FURTHEST_MS:
        raise _bad(name, f"must be a whole number of milliseconds from 1 to {FURTHEST_MS}")
    return now + value * MILLISECOND


def _instant(
    headers: Mapping[str, str], name: str, now: int, wall: int, passed: Cause
) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    instant = _unix_ms(text, name) if text.isdigit() else _rfc3339(text, name)
    ahead = instant - wall
    if ahead > FURTHEST_MS * MILLISECOND:
        raise _bad(name, f"must be no more than {FURTHEST_MS // 86_400_000} days ahead")
    if ahead <= 0:
        facts = {"cause": str(passed), "late_by_ms": -ahead // MILLISECOND}
        raise ApiError(passed, f"The instant in {name} has passed.", facts=facts)
    return now + ahead


def _unix_ms(text: str, name: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise _bad(name, "is out of range")
    value = int(text)
    if value < SECONDS_BELOW:
        raise _bad(name, "must be in milliseconds since 1970; this value is too small for that")
    return value * MILLISECOND


def _rfc3339(text: str, name: str) -> int:
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise _bad(name, "must be an RFC 3339 date and time with a zone, or Unix milliseconds")
    day, time, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{time}{'+00:00' if zone in 'Zz' else zone}")
    except ValueError as error:
        raise _bad(name, f"is not a real date and time: {error}") from error
    since = moment - _EPOCH
    seconds = since.days * 86_400 + since.seconds
    return seconds * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))


def _bad(name: str, problem: str) -> ApiError:
    return ApiError(Reason.INVALID_HEADER, f"{name} {problem}.", param=name)
