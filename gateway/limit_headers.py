"""How limits stand, as headers: OpenAI's, Anthropic's, and the IETF's, which both get.

IETF: draft-ietf-httpapi-ratelimit-headers-10, `RateLimit-Policy` and `RateLimit`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tenants.limits import Limit, Measure, Window

RawHeaders = list[tuple[bytes, bytes]]

_UNITS = {
    Measure.REQUESTS: "requests",
    Measure.CONCURRENCY: "concurrent-requests",
    Measure.INPUT: "tokens",
    Measure.OUTPUT: "tokens",
    Measure.TOKENS: "tokens",
    Measure.MONEY: "micros",  # of a unit of money: an integer here has at most 15 digits
}
_SECONDS = {
    Window.MINUTE: 60,
    Window.HOUR: 3600,
    Window.DAY: 86_400,
    Window.MONTH: 2_592_000,  # 30 days; they differ, and the reset says it exactly
}


Kind = tuple[frozenset[Measure], bytes, bytes, bytes]


def _kind(name: str, *measures: Measure) -> Kind:
    """What is counted, and the names that tell its limit, what remains, and the reset."""
    limit, remaining, reset = (
        name.format(told).encode() for told in ("limit", "remaining", "reset")
    )
    return frozenset(measures), limit, remaining, reset


_OPENAI = (
    _kind("x-ratelimit-{}-requests", Measure.REQUESTS),
    _kind("x-ratelimit-{}-tokens", Measure.TOKENS, Measure.INPUT, Measure.OUTPUT),
)
_ANTHROPIC = (
    _kind("anthropic-ratelimit-requests-{}", Measure.REQUESTS),
    _kind("anthropic-ratelimit-tokens-{}", Measure.TOKENS),
    _kind("anthropic-ratelimit-input-tokens-{}", Measure.INPUT),
    _kind("anthropic-ratelimit-output-tokens-{}", Measure.OUTPUT),
)


@dataclass(frozen=True, slots=True)
class Standing:
    """How one limit stands; `reset_ms` is how long until all of it can be had."""

    limit: Limit
    remaining: int
    reset_ms: int


def openai(standings: Sequence[Standing]) -> RawHeaders:
    """`x-ratelimit-*` for requests and for the tokens that are nearest their end."""
    headers = _ietf(standings)
    for measures, limit, remaining, reset in _OPENAI:
        nearest = _nearest(standings, measures)
        if nearest is not None:
            headers += [
                (limit, b"%d" % nearest.limit.amount),
                (remaining, b"%d" % nearest.remaining),
                (reset, duration(nearest.reset_ms).encode()),
            ]
    return headers


def anthropic(standings: Sequence[Standing], wall_ms: int) -> RawHeaders:
    """`anthropic-ratelimit-*`; resets are instants."""
    headers = _ietf(standings)
    for measures, limit, remaining, reset in _ANTHROPIC:
        nearest = _nearest(standings, measures)
        if nearest is not None:
            instant = datetime.fromtimestamp((wall_ms + nearest.reset_ms) // 1000 + 1, UTC)
            headers += [
                (limit, b"%d" % nearest.limit.amount),
                (remaining, b"%d" % nearest.remaining),
                (reset, instant.strftime("%Y-%m-%dT%H:%M:%SZ").encode()),
            ]
    return headers


def duration(milliseconds: int) -> str:
    """As OpenAI writes it: `12ms`, `1.5s`, `6m0s`, `24h0m0s`."""
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    seconds = f"{rest / 1000:g}s"
    if not minutes:
        return seconds
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}" if hours else f"{minutes}m{seconds}"


def _nearest(standings: Sequence[Standing], measures: frozenset[Measure]) -> Standing | None:
    concerned = [standing for standing in standings if standing.limit.measure in measures]
    return min(concerned, key=lambda standing: standing.remaining, default=None)


def _ietf(standings: Sequence[Standing]) -> RawHeaders:
    if not standings:
        return []
    policies = ", ".join([_policy(standing.limit) for standing in standings])
    limits = ", ".join([_standing(standing) for standing in standings])
    return [(b"ratelimit-policy", policies.encode()), (b"ratelimit", limits.encode())]


def _policy(limit: Limit) -> str:
    seconds = _SECONDS.get(limit.window)
    window = f";w={seconds}" if seconds else ""
    return f'"{limit.name}";q={_number(limit, limit.amount)};qu="{_UNITS[limit.measure]}"{window}'


def _standing(standing: Standing) -> str:
    limit, seconds = standing.limit, -(-standing.reset_ms // 1000)
    return f'"{limit.name}";r={_number(limit, standing.remaining)};t={seconds}'


def _number(limit: Limit, amount: int) -> int:
    return amount // 1000 if limit.measure is Measure.MONEY else amount
