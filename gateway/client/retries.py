"""Whether a call that failed is sent again, and when. Pure: time and chance are arguments.

Three things bound what is resent: the call's deadline, the number of sends of one call, and a
budget that calls share, so that many callers who are refused at once do not become a storm.
"""

import math
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Times are in seconds.

    A call is sent at most `sends` times. Told no time, it waits anew with full jitter between 0 and
    `base` doubled for each failure, at most `cap` (Brooker, "Exponential Backoff And Jitter", AWS
    2015). It waits for no hint over `longest_hint`. Retries are at most `ratio` of first sends, and
    `burst` more.
    """

    sends: int = 5
    base: float = 0.5
    cap: float = 8.0
    longest_hint: float = 60.0
    ratio: float = 0.1
    burst: int = 10

    def __post_init__(self) -> None:
        if self.sends < 1:
            raise ValueError(f"sends must be at least 1, not {self.sends}")
        for name in ("base", "cap", "longest_hint", "ratio", "burst"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")


DEFAULT_POLICY = RetryPolicy()


class GivenUp(StrEnum):
    """Why a call was not sent again."""

    FINAL = "final"  # the answer says, or means, that the same call would fare no better
    SENDS = "sends"
    HINT = "hint"  # the time to come back is too far away
    DEADLINE = "deadline"  # it would be sent past the end
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Failure:
    """`again` if the same call may be sent once more; `hint` is the wait asked for, in seconds."""

    again: bool
    hint: float | None = None


def read_failure(status: int, headers: Mapping[str, str]) -> Failure:
    """What an answer that is not a success says of trying again. `headers` ignore case.

    `x-should-retry` overrides the status; `retry-after-ms` is preferred to `retry-after`.
    """
    hint = _seconds(headers.get("retry-after-ms"), 1000) or _seconds(headers.get("retry-after"), 1)
    said = headers.get("x-should-retry")
    if said in {"true", "false"}:
        return Failure(said == "true", hint)
    return Failure(status in {408, 429} or status >= 500 or hint is not None, hint)


def _seconds(text: str | None, parts: int) -> float | None:
    """A positive wait, or None for what is no number; a date is not understood."""
    try:
        value = float(text or "nan") / parts
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


class RetryBudget:
    """A token bucket: each first send pays `ratio` in, each retry takes 1 out. Starts full.

    Threads may share one.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._tokens = float(policy.burst)
        self._lock = threading.Lock()

    def deposit(self) -> None:
        """Count a first send."""
        with self._lock:
            self._tokens = min(self._tokens + self._policy.ratio, max(1.0, self._policy.burst))

    def withdraw(self) -> bool:
        """Pay for a retry; False if there is not enough."""
        with self._lock:
            # Ten deposits of 0.1 must buy a retry, though their floating-point sum is just below 1.
            if self._tokens < 1 - 1e-9:
                return False
            self._tokens -= 1
            return True


class Retries:
    """The retries of one call that must be over at `end` (seconds on the clock of `now` below)."""

    def __init__(self, policy: RetryPolicy, budget: RetryBudget, end: float) -> None:
        self._policy = policy
        self._budget = budget
        self._end = end
        self._sent = 1
        budget.deposit()

    @property
    def count(self) -> int:
        """How often the call has been sent again."""
        return self._sent - 1

    def after(self, failure: Failure, now: float, chance: random.Random) -> float | GivenUp:
        """Seconds to wait before the next send, which is then paid for; or why there is none.

        A hint is kept to the letter: the server spreads callers itself, and a promised place is
        held from then on and not for long.
        """
        policy = self._policy
        if not failure.again:
            return GivenUp.FINAL
        if self._sent >= policy.sends:
            return GivenUp.SENDS
        if failure.hint is not None and failure.hint > policy.longest_hint:
            return GivenUp.HINT
        wait = failure.hint
        if wait is None:
            wait = chance.uniform(0, min(policy.cap, policy.base * 2.0**self.count))
        if now + wait >= self._end:
            return GivenUp.DEADLINE
        if not self._budget.withdraw():
            return GivenUp.BUDGET
        self._sent += 1
        return wait
