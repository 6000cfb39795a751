from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tenants.prices import Price

tokens = st.integers(0, 10**7)
amounts = st.integers(0, 10**9).map(lambda millionths: millionths / 10**6)
PRICES = st.builds(Price, amounts, st.none() | amounts, amounts)


def test_a_call_costs_its_tokens_by_kind():
    price = Price(prompt=0.15, cached=0.075, output=0.6)
    # 600 x 0.15 + 400 x 0.075 + 100 x 0.6 millionths of a unit
    assert price.nanos(1000, 400, 100) == 180_000
    assert Price(prompt=0.15, output=0.6).nanos(1000, 400, 100) == 210_000
    assert Price().nanos(1000, 400, 100) == 0


def test_a_part_of_a_nano_is_charged_as_a_whole():
    assert Price(prompt=0.0001).nanos(1, 0, 0) == 1
    assert Price(prompt=0.0001).nanos(11, 0, 0) == 2


@given(PRICES, tokens, tokens, tokens)
def test_it_is_the_exact_sum_rounded_up(price, fresh, cached, output):
    def exact(amount):
        return Fraction(round(amount * 10**6), 10**6) * 1000  # nanos for a token

    cached_price = price.prompt if price.cached is None else price.cached
    total = (
        exact(price.prompt) * fresh + exact(cached_price) * cached + exact(price.output) * output
    )
    assert price.nanos(fresh + cached, cached, output) == -(-total // 1)


@given(PRICES, st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.data())
def test_the_worst_case_is_never_below_what_is_paid(price, fresh, cached, output, data):
    used = data.draw(st.integers(0, output))
    assert price.highest(fresh + cached, output) >= price.nanos(fresh + cached, cached, used)
