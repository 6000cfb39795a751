"""Who gives way when a queue is full."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.displacement import Claim, most_over_share


def test_the_flow_furthest_above_its_share_gives_way():
    gold, bronze = Claim("gold", 3.0, 600), Claim("bronze", 1.0, 500)
    assert most_over_share([gold, bronze], 1000) == bronze  # 250 above against 150 below
    assert most_over_share([Claim("gold", 3.0, 1100), bronze], 1000).name == "gold"


def test_equals_are_told_apart_by_name_whatever_the_order():
    claims = [Claim("a", 1.0, 10), Claim("b", 1.0, 10)]
    assert most_over_share(claims, 20) == most_over_share(claims[::-1], 20) == claims[1]


def test_nobody_cannot_be_displaced():
    with pytest.raises(ValueError, match="nobody"):
        most_over_share([], 10)


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.integers(0, 1000)), min_size=1, max_size=9),
    st.integers(1, 2000),
)
def test_nobody_within_its_share_gives_way_while_the_queue_is_over_full(flows, cap):
    claims = [Claim(str(i), weight, tokens) for i, (weight, tokens) in enumerate(flows)]
    chosen = most_over_share(claims, cap)
    if sum(claim.tokens for claim in claims) > cap:
        share = cap * chosen.weight / sum(claim.weight for claim in claims)
        assert chosen.tokens > share - 1e-6
