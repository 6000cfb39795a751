"""A full table takes from the tenant that holds most of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fair_table import FairTable


def filled(capacity: int, puts: str) -> FairTable[int, str]:
    """One entry for each letter, a tenant's name; keys count up."""
    table: FairTable[int, str] = FairTable(capacity)
    for key, tenant in enumerate(puts):
        table.put(tenant, key, tenant.upper())
    return table


def held(table: FairTable[int, str], puts: str) -> list[int]:
    return [key for key, tenant in enumerate(puts) if table.get(tenant, key) is not None]


def test_whoever_floods_a_full_table_loses_its_own_oldest():
    puts = "aabbbbbbbb"
    assert held(filled(4, puts), puts) == [0, 1, 8, 9]


def test_a_newcomer_takes_its_place_from_the_one_that_holds_most():
    table = filled(4, "abbb")
    assert table.put("c", 4, "C") == ("b", 1)
    assert (table.get("c", 4), table.get("b", 1), len(table)) == ("C", None, 4)


def test_of_equals_the_one_that_has_held_as_many_for_longest_gives_way():
    table = filled(3, "abc")
    assert [table.put("d", 3, "D"), table.put("a", 4, "A")] == [("a", 0), ("b", 1)]


def test_what_is_put_again_is_the_newest_of_its_tenant_and_takes_no_more_room():
    table = filled(3, "aaa")
    assert table.put("a", 0, "again") is None
    assert table.oldest() == ("a", 1, "A")
    assert table.put("a", 3, "A") == ("a", 1)
    assert table.get("a", 0) == "again"


def test_what_is_dropped_makes_room():
    table = filled(2, "aa")
    table.drop("a", 0)
    assert table.put("a", 2, "A") is None
    assert (table.get("a", 0), table.get("a", 1), table.get("a", 2)) == (None, "A", "A")
    table.drop("a", 1)
    table.drop("a", 2)
    assert (len(table), table.oldest()) == (0, None)


def test_a_table_without_room_is_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        FairTable(0)


TURNS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 12), st.booleans()), max_size=120
)


@given(st.integers(1, 12), TURNS)
def test_the_table_is_bounded_and_takes_only_from_those_above_an_equal_share(capacity, turns):
    """Against lists of each tenant's keys, oldest first, which are told only what was evicted."""
    table: FairTable[int, int] = FairTable(capacity)
    model: dict[str, list[int]] = {tenant: [] for tenant in "abcd"}
    for turn, (tenant, key, dropped) in enumerate(turns):
        mine = model[tenant]
        if key in mine:
            mine.remove(key)
        if dropped:
            table.drop(tenant, key)
        else:
            mine.append(key)
            evicted = table.put(tenant, key, turn)
            assert table.get(tenant, key) == turn
            if evicted is not None:
                loser, lost = evicted
                sizes = [len(keys) for keys in model.values()]
                assert len(model[loser]) == max(sizes)
                assert len(model[loser]) > capacity / sum(size > 0 for size in sizes)
                assert model[loser].pop(0) == lost
        assert len(table) == sum(map(len, model.values())) <= capacity
        for name, keys in model.items():
            assert [k for k in range(13) if table.get(name, k) is not None] == sorted(keys)
