"""To whom a call belongs and when it must be over, inherited by all calls made inside.

The scope in force is a context variable: it reaches coroutines, tasks and whatever else copies the
context, and no argument has to be passed on.
"""

import math
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from gateway.client.errors import DeadlineError


@dataclass(frozen=True, slots=True)
class Scope:
    """`end` and the end of the whole task are in seconds of `time.monotonic`, infinite if none."""

    task: str
    run: str | None = None
    attempt: str | None = None
    task_end: float = math.inf
    end: float = math.inf

    def headers(self, now: float, wall: float) -> dict[str, str]:
        """What tells a server of it. `wall` is `now` in seconds since 1970.

        The first `x-timeout-ms` of a task fixes the end of the task, so it always tells that one; a
        part that must be over earlier says so with `x-deadline`. Raises DeadlineError.
        """
        headers = {"x-task-id": self.task}
        if self.run is not None:
            headers["x-run-id"] = self.run
        if self.attempt is not None:
            headers["x-attempt-id"] = self.attempt
        left = self.end - now
        if left < 0.001:
            raise DeadlineError
        if self.task_end < math.inf:
            headers["x-timeout-ms"] = str(int((self.task_end - now) * 1000))
        if self.end < self.task_end:
            headers["x-deadline"] = str(int((wall + left) * 1000))
        return headers


def sendable(text: str) -> bool:
    """Whether a header can hold `text`, and as one word."""
    return text.isascii() and text.isprintable() and " " not in text


_current: ContextVar[Scope | None] = ContextVar("watermaster_scope", default=None)


def current() -> Scope | None:
    return _current.get()


def new_id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


@contextmanager
def scope(
    *,
    task: str | None = None,
    run: str | None = None,
    attempt: str | None = None,
    within: float | None = None,
) -> Iterator[Scope]:
    """Calls made inside belong to it, and must be over `within` so many seconds.

    What is not named is inherited, or made up where there is no task yet. No scope ends later than
    the one around it. Raises ValueError for what cannot be sent.
    """
    for name, text in (("task", task), ("run", run), ("attempt", attempt)):
        if text is not None and not sendable(text):
            raise ValueError(f"{name} must be printable ASCII without spaces, not {text!r}")
    if within is not None and math.isnan(within):
        raise ValueError("within must be a number of seconds, not nan")
    own = _narrowed(_current.get(), task, run, attempt, within)
    token = _current.set(own)
    try:
        yield own
    finally:
        _current.reset(token)


def _narrowed(
    outer: Scope | None,
    task: str | None,
    run: str | None,
    attempt: str | None,
    within: float | None,
) -> Scope:
    end = math.inf if within is None else time.monotonic() + within
    if outer is not None:
        end = min(end, outer.end)
    if outer is None or (task is not None and task != outer.task):
        return Scope(task or new_id("task"), run, attempt, end, end)
    if run is not None and run != outer.run:
        return Scope(outer.task, run, attempt, outer.task_end, end)
    return Scope(outer.task, outer.run, attempt or outer.attempt, outer.task_end, end)
