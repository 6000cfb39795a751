import re

import pytest

from gateway.limit_headers import Standing, anthropic, duration, openai
from tenants.limits import Limit, Measure, Window

MINUTE = Limit("tokens_per_minute", Measure.TOKENS, Window.MINUTE, 1000)
INPUT = Limit("input_tokens_per_minute", Measure.INPUT, Window.MINUTE, 800)
MONEY = Limit("money_per_month", Measure.MONEY, Window.MONTH, 10**15)  # the most there can be
PLACES = Limit("concurrency", Measure.CONCURRENCY, Window.HELD, 4)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0ms"),
        (12, "12ms"),
        (1000, "1s"),
        (1500, "1.5s"),
        (59_999, "59.999s"),
        (360_000, "6m0s"),
        (86_400_000, "24h0m0s"),
    ],
)
def test_a_reset_is_written_as_openai_does(milliseconds, text):
    assert duration(milliseconds) == text


def test_the_scarcest_tokens_are_told():
    headers = dict(openai([Standing(MINUTE, 500, 30_000), Standing(INPUT, 200, 45_000)]))
    assert headers[b"x-ratelimit-limit-tokens"] == b"800"
    assert headers[b"x-ratelimit-remaining-tokens"] == b"200"
    assert headers[b"x-ratelimit-reset-tokens"] == b"45s"
    assert b"x-ratelimit-limit-requests" not in headers


def test_anthropic_is_told_each_kind_with_an_instant_not_before_the_reset():
    standings = [Standing(MINUTE, 500, 30_500), Standing(INPUT, 200, 45_000)]
    headers = dict(anthropic(standings, wall_ms=1_000_000))
    assert headers[b"anthropic-ratelimit-tokens-remaining"] == b"500"
    assert headers[b"anthropic-ratelimit-tokens-reset"] == b"1970-01-01T00:17:11Z"
    assert headers[b"anthropic-ratelimit-input-tokens-limit"] == b"800"


def test_the_ietfs_fields_hold_every_limit_in_integers_of_at_most_15_digits():
    standings = [Standing(MONEY, 10**15, 2_000_001), Standing(PLACES, 3, 0)]
    headers = dict(openai(standings))
    assert headers[b"ratelimit-policy"] == (
        b'"money_per_month";q=1000000000000;qu="micros";w=2592000, '
        b'"concurrency";q=4;qu="concurrent-requests"'
    )
    assert (
        headers[b"ratelimit"] == b'"money_per_month";r=1000000000000;t=2001, "concurrency";r=3;t=0'
    )
    assert max(map(len, re.findall(rb"\d+", headers[b"ratelimit"]))) <= 15
    assert openai([]) == []
