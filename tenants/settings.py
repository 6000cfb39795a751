"""Every setting of a tenant: its kind, its meaning, its check, and its form as text.

One table, from which the record in the store, the command line and the admin API are made. An
absent setting is left to the server or, for limits and budgets, not limited.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tenants.choices import CHOICES, DOMAINS, EXPIRIES, MODES

_MIN_WEIGHT, _MAX_WEIGHT = 1e-6, 1e6  # beyond these, ratios of service lose all precision
_MAX_COUNT = 10**12
_MAX_PRIORITY = 100
_MIN_MONEY, _MAX_MONEY = 1e-6, 1e6  # kept in 10^-9 of a unit, exact up to here in Lua's numbers

Value = str | int | float | bool


class InvalidRecord(ValueError):  # noqa: N818 - reads better without
    """A field of a tenant or a key has a value that makes no sense; `field` names it."""

    def __init__(self, field_name: str, message: str) -> None:
        super().__init__(message)
        self.field = field_name


class Kind(StrEnum):
    """What a setting's value is."""

    FLAG = "flag"  # true or false
    WEIGHT = "weight"  # a number
    COUNT = "count"  # a whole number from 1
    PRIORITY = "priority"  # a whole number from 1 to 100; none is 0
    MONEY = "money"  # a number, in units of the operator's currency
    CHOICE = "choice"  # one of `values`


@dataclass(frozen=True, slots=True)
class Setting:
    """One of them. `required` ones always have a value; the others may be None."""

    name: str
    kind: Kind
    about: str  # a sentence for people
    values: tuple[str, ...] = ()
    required: bool = False

    def check(self, value: Any) -> None:
        """Raises InvalidRecord for a value that makes no sense."""
        if value is None and not self.required:
            return
        problem = _CHECKS[self.kind](value, self.values)
        if problem:
            raise InvalidRecord(self.name, f"{self.name} {problem}")

    def write(self, value: Value) -> str:
        """The value as the store keeps it."""
        if isinstance(value, bool):
            return "1" if value else "0"
        return repr(float(value)) if self.kind is Kind.WEIGHT else str(value)

    def parse(self, text: str) -> Value:
        """The value that was written as `text`. Raises ValueError for what was not."""
        value = _READERS[self.kind](text)
        self.check(value)
        return value


def read_flag(text: str) -> bool:
    """Raises ValueError: what is damaged is neither true nor false."""
    if text not in {"0", "1"}:
        raise ValueError(f"{text!r} is not a flag")
    return text == "1"


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _check_flag(value: Any, _: tuple[str, ...]) -> str:
    return "" if isinstance(value, bool) else f"must be true or false, not {value}"


def _check_weight(value: Any, _: tuple[str, ...]) -> str:
    if _is_number(value) and _MIN_WEIGHT <= value <= _MAX_WEIGHT:
        return ""
    return f"must be a number from {_MIN_WEIGHT} to {_MAX_WEIGHT:.0f}"


def _check_whole(value: Any, most: int) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and 1 <= value <= most:
        return ""
    return f"must be a whole number from 1 to {most}, not {value!r}"


def _check_count(value: Any, _: tuple[str, ...]) -> str:
    return _check_whole(value, _MAX_COUNT)


def _check_priority(value: Any, _: tuple[str, ...]) -> str:
    return _check_whole(value, _MAX_PRIORITY)


def _check_money(value: Any, _: tuple[str, ...]) -> str:
    if _is_number(value) and _MIN_MONEY <= value <= _MAX_MONEY:
        return ""
    return f"must be an amount of money from {_MIN_MONEY:f} to {_MAX_MONEY:.0f}, not {value!r}"


def _check_choice(value: Any, values: tuple[str, ...]) -> str:
    return "" if value in values else f"must be one of {', '.join(values)}, not {value!r}"


_CHECKS: Mapping[Kind, Callable[[Any, tuple[str, ...]], str]] = {
    Kind.FLAG: _check_flag,
    Kind.WEIGHT: _check_weight,
    Kind.COUNT: _check_count,
    Kind.PRIORITY: _check_priority,
    Kind.MONEY: _check_money,
    Kind.CHOICE: _check_choice,
}
_READERS: Mapping[Kind, Callable[[str], Value]] = {
    Kind.FLAG: read_flag,
    Kind.WEIGHT: float,
    Kind.COUNT: int,
    Kind.PRIORITY: int,
    Kind.MONEY: float,
    Kind.CHOICE: str,
}


def _count(name: str, about: str) -> Setting:
    return Setting(name, Kind.COUNT, about)


def _money(name: str, about: str) -> Setting:
    return Setting(name, Kind.MONEY, about)


SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("weight", Kind.WEIGHT, "Share of the engine, relative to others.", required=True),
        Setting(
            "priority",
            Kind.PRIORITY,
            "Its class: higher goes first where policy.fairness is priority; none is 0.",
        ),
        Setting("disabled", Kind.FLAG, "Whether all its keys are refused.", required=True),
        _count("requests_per_minute", "Calls it may make in a minute."),
        _count("tokens_per_minute", "Tokens, prompt and output, in a minute."),
        _count("input_tokens_per_minute", "Prompt tokens in a minute."),
        _count("output_tokens_per_minute", "Output tokens in a minute."),
        _count("concurrency", "Calls it may have open at a time."),
        _count("tokens_per_hour", "Budget of tokens for each hour (UTC)."),
        _count("tokens_per_day", "Budget of tokens for each day (UTC)."),
        _count("tokens_per_month", "Budget of tokens for each calendar month (UTC)."),
        _money("money_per_hour", "Budget of money for each hour (UTC)."),
        _money("money_per_day", "Budget of money for each day (UTC)."),
        _money("money_per_month", "Budget of money for each calendar month (UTC)."),
        _count("queue_requests", "Requests it may have waiting."),
        _count("queue_tokens", "Prompt tokens it may have waiting."),
        _count("default_timeout_ms", "Milliseconds that a request without a deadline may take."),
        _count(
            "max_timeout_ms",
            "Most milliseconds a request may take; a later deadline, or none, is cut to it.",
        ),
        _count("default_max_tokens", "Most output tokens of a request that does not say."),
        _count("max_max_tokens", "Most output tokens of any request; asking for more is refused."),
        _count(
            "stream_header_delay_ms",
            "Milliseconds after which a stream begins though no token is there yet.",
        ),
        _count(
            "tpot_target_ms",
            "Milliseconds per output token (TPOT) beyond which others' prompts may not slow it.",
        ),
        Setting(
            "admission",
            Kind.CHOICE,
            "Which of its requests with a deadline are taken in.",
            MODES,
        ),
        Setting(
            "on_infeasible",
            Kind.CHOICE,
            "What becomes of a request that would end after its deadline.",
            CHOICES,
        ),
        Setting(
            "on_expiry",
            Kind.CHOICE,
            "What becomes of an answer that has begun when its deadline passes.",
            EXPIRIES,
        ),
        Setting(
            "domain",
            Kind.CHOICE,
            "Between whom its share is divided: nobody, or its keys, users, tasks or runs.",
            DOMAINS,
        ),
    )
}
