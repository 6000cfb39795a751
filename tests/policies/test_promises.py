"""The promise ledger: booked, claimed once, lapsed, bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.promises import Promise, PromiseConfig, PromiseLedger, Tally
from telemetry.units import SECOND

A, B = ("a",), ("b",)


def book(ledger, flow=A, names=("task",), due=10, now=0, tokens=50) -> Promise | None:
    return ledger.book(flow, names, due * SECOND, now * SECOND, 1, tokens)


def claim(ledger, names=("task",), now=10, flow=A, retry=False) -> Promise | None:
    return ledger.claim(flow, names, now * SECOND, retry=retry)


def test_a_return_claims_its_place_once_and_not_before_it_is_due():
    ledger = PromiseLedger(PromiseConfig())
    promise = book(ledger)
    assert claim(ledger, now=9) is None
    assert claim(ledger, flow=B) is None
    assert claim(ledger) == promise
    assert claim(ledger) is None
    assert len(ledger) == 0


def test_either_name_finds_the_place():
    ledger = PromiseLedger(PromiseConfig())
    promise = book(ledger, names=("task:t", "key:k"))
    assert ledger.find(A, ("key:k",)) == ledger.find(A, ("task:t",)) == promise
    assert claim(ledger, ("other", "key:k")) == promise
    assert ledger.find(A, ("task:t",)) is None


def test_calls_of_one_task_each_have_a_place():
    ledger = PromiseLedger(PromiseConfig())
    first, second = book(ledger, due=3), book(ledger, due=4)
    assert [claim(ledger), claim(ledger), claim(ledger)] == [first, second, None]


def test_a_nameless_retry_takes_the_nameless_place_due_first():
    ledger = PromiseLedger(PromiseConfig())
    named = book(ledger, due=1)
    later, sooner = book(ledger, names=(), due=9), book(ledger, names=(), due=8)
    assert claim(ledger, (), retry=False) is None
    assert claim(ledger, ("new",), retry=True) == sooner
    assert claim(ledger, (), retry=True) == later
    assert claim(ledger, (), retry=True) is None
    assert list(ledger.of(A)) == [named]


def test_places_lapse_after_the_grace():
    ledger = PromiseLedger(PromiseConfig(grace=2))
    first, second = book(ledger, names=("x",), due=5), book(ledger, B, ("y",), due=6)
    assert ledger.lapse(7 * SECOND) == []
    assert ledger.lapse(7 * SECOND + 1) == [first]
    assert claim(ledger, ("x",), now=7) is None
    assert ledger.lapse(100 * SECOND) == [second]
    assert ledger.tally(A) == ledger.tally(B) == Tally()


def test_long_waits_are_not_promised_and_the_ledger_is_bounded():
    ledger = PromiseLedger(PromiseConfig(longest=60, per_flow=2, total=3))
    assert book(ledger, due=61) is None
    assert book(ledger, names=("1",), due=60) is not None
    assert book(ledger, names=("2",)) is not None
    assert book(ledger, names=("3",)) is None
    assert book(ledger, B, ("4",)) is not None
    assert book(ledger, B, ("5",)) is None
    assert len(ledger) == 3


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["book", "claim", "lapse"]),
            st.sampled_from([A, B]),
            st.sampled_from(["", "x", "y"]),
            st.integers(0, 5),
        ),
        max_size=80,
    )
)
def test_every_place_is_claimed_or_lapses_exactly_once(actions):
    ledger, now = PromiseLedger(PromiseConfig(per_flow=4, total=6, grace=1)), 0
    booked, gone = [], []
    for action, flow, name, step in actions:
        now += step
        names = (name,) if name else ()
        if action == "book":
            promise = book(ledger, flow, names, now + step, now)
            booked += [promise] if promise else []
        elif action == "claim":
            promise = claim(ledger, names, now, flow, retry=not names)
            gone += [promise] if promise else []
        else:
            gone += ledger.lapse(now * SECOND)
        assert len(ledger) == len(booked) - len(gone) <= 6
    gone += ledger.lapse((now + 100) * SECOND)
    assert sorted(p.number for p in gone) == [p.number for p in booked]
    assert len(ledger) == 0
    assert ledger.find(A, ("x", "y")) is None


@pytest.mark.parametrize("name", ["grace", "longest", "per_flow", "total"])
def test_configuration_is_checked(name):
    with pytest.raises(ValueError, match=name):
        PromiseConfig(**{name: -1})
