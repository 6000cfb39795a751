"""What a tenant's limits and budgets are counted in, and over which windows. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tenants.model import Tenant
from tenants.prices import NANOS, Price


class Measure(StrEnum):
    """What is counted."""

    REQUESTS = "requests"
    CONCURRENCY = "concurrency"  # calls that are open
    INPUT = "input"  # prompt tokens
    OUTPUT = "output"  # output tokens
    TOKENS = "tokens"  # both
    MONEY = "money"  # in nanos, see `tenants.prices`


class Window(StrEnum):
    """Over which time. Calendar windows are UTC, by the store's clock."""

    HELD = "held"  # while it is held
    MINUTE = "minute"  # a bucket of that size, refilled at an even rate
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"

    @property
    def is_budget(self) -> bool:
        """Whether it starts anew all at once, a long time away."""
        return self in {Window.HOUR, Window.DAY, Window.MONTH}


MINUTE_MS = 60_000
Amounts = Mapping[Measure, int]


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit or budget: at most `amount` of `measure` in `window`. `name` is the setting's."""

    name: str
    measure: Measure
    window: Window
    amount: int


_SETTINGS = (
    ("requests_per_minute", Measure.REQUESTS, Window.MINUTE),
    ("concurrency", Measure.CONCURRENCY, Window.HELD),
    ("tokens_per_minute", Measure.TOKENS, Window.MINUTE),
    ("input_tokens_per_minute", Measure.INPUT, Window.MINUTE),
    ("output_tokens_per_minute", Measure.OUTPUT, Window.MINUTE),
    ("tokens_per_hour", Measure.TOKENS, Window.HOUR),
    ("tokens_per_day", Measure.TOKENS, Window.DAY),
    ("tokens_per_month", Measure.TOKENS, Window.MONTH),
    ("money_per_hour", Measure.MONEY, Window.HOUR),
    ("money_per_day", Measure.MONEY, Window.DAY),
    ("money_per_month", Measure.MONEY, Window.MONTH),
)

CALL: Amounts = {Measure.REQUESTS: 1, Measure.CONCURRENCY: 1}  # what every call takes


def limits_of(tenant: Tenant) -> tuple[Limit, ...]:
    """Those that the tenant has."""
    return tuple(
        Limit(name, measure, window, _whole(getattr(tenant, name), measure))
        for name, measure, window in _SETTINGS
        if getattr(tenant, name) is not None
    )


def _whole(value: float, measure: Measure) -> int:
    return round(value * NANOS) if measure is Measure.MONEY else int(value)


def worst_case(prompt: int, output: int, price: Price) -> Amounts:
    """The most that a call of `prompt` tokens and at most `output` tokens can use."""
    return {
        Measure.INPUT: prompt,
        Measure.OUTPUT: output,
        Measure.TOKENS: prompt + output,
        Measure.MONEY: price.highest(prompt, output),
    }


def spent(prompt: int, cached: int, output: int, price: Price) -> Amounts:
    """What a call used; all in tokens, `cached` being part of `prompt`."""
    return {
        Measure.REQUESTS: 1,
        Measure.INPUT: prompt,
        Measure.OUTPUT: output,
        Measure.TOKENS: prompt + output,
        Measure.MONEY: price.nanos(prompt, cached, output),
    }
