"""The local part of limits: no store, no clock."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tenants.book import Book, Reservation, Shortage
from tenants.limits import CALL, Limit, Measure, Window, limits_of, spent, worst_case
from tenants.model import Tenant
from tenants.prices import Price
from tenants.slices import Grant

TOKENS = Limit("tokens_per_day", Measure.TOKENS, Window.DAY, 1000)
CALLS = Limit("concurrency", Measure.CONCURRENCY, Window.HELD, 4)
LEASE = 1000
MANY = {Measure.TOKENS: 10**9}


def granted(held, *, used=0, idle=0, start=0, recalled=False, before=0):
    return Grant(held, used, idle, start, 0, recalled, before=before)


def book(*grants, now=0):
    """Of TOKENS and CALLS, with these held of them, and told that all of it may be used."""
    opened = Book((TOKENS, CALLS), now)
    opened.report([MANY])
    opened.renew(grants, now, LEASE)
    return opened


def take(opened, tokens, calls=1, now=0):
    taken = opened.reserve({Measure.TOKENS: tokens, Measure.CONCURRENCY: calls}, now)
    assert isinstance(taken, Reservation)
    return taken


def test_a_tenants_limits_are_those_it_has():
    tenant = Tenant("gold", concurrency=3, money_per_day=0.25, tokens_per_minute=10)
    assert [(limit.name, limit.amount) for limit in limits_of(tenant)] == [
        ("concurrency", 3),
        ("tokens_per_minute", 10),
        ("money_per_day", 250_000_000),
    ]
    assert limits_of(Tenant("gold")) == ()


def test_the_worst_case_and_what_was_used_are_counted_by_kind():
    price = Price(prompt=1.0, cached=0.5, output=2.0)
    worst = worst_case(100, 50, price)
    assert (worst[Measure.TOKENS], worst[Measure.MONEY]) == (150, 200_000)
    used = spent(100, 40, 10, price)
    assert [used[m] for m in (Measure.INPUT, Measure.OUTPUT, Measure.TOKENS)] == [100, 10, 110]
    assert (used[Measure.REQUESTS], used[Measure.MONEY]) == (1, 100_000)


def test_of_several_limits_the_one_that_is_short_for_longest_is_told():
    """Who waits for one must not come back to another that is used up."""
    minute = Limit("tokens_per_minute", Measure.TOKENS, Window.MINUTE, 500)
    output = Limit("output_tokens_per_minute", Measure.OUTPUT, Window.MINUTE, 100)
    hour = Limit("tokens_per_hour", Measure.TOKENS, Window.HOUR, 900)
    limits = (minute, output, hour, TOKENS)

    def check(demand, name, *, hour_used=900, hour_ends=1_000_000, day_used=1000):
        opened = Book(limits, 0)
        opened.report([MANY])
        rest = (Grant(0, hour_used, 0, 0, hour_ends, False), Grant(0, day_used, 0, 0, 10**7, False))
        opened.renew([granted(0), granted(0), *rest], 0, LEASE)
        for slice_ in opened.slices.values():
            slice_.deny(1)
        for short in (opened.reserve(demand, 0), opened.refusal(demand, fresh=True)):
            assert isinstance(short, Shortage)
            assert short.slice.limit.name == name

    check({Measure.TOKENS: 10, Measure.OUTPUT: 101}, "output_tokens_per_minute")  # for ever
    check({Measure.TOKENS: 600, Measure.OUTPUT: 10}, "tokens_per_minute")  # for ever
    check({Measure.TOKENS: 10, Measure.OUTPUT: 10}, "tokens_per_day")
    check({Measure.TOKENS: 10}, "tokens_per_hour", day_used=0)  # others hold the day's, for now
    check({Measure.TOKENS: 300}, "tokens_per_minute", hour_ends=30_000, day_used=0)
    check({Measure.TOKENS: 10}, "tokens_per_hour", hour_ends=30_000, day_used=0)
    both = {Measure.TOKENS: 10, Measure.OUTPUT: 50}
    check(both, "output_tokens_per_minute", day_used=0, hour_used=0)
    check({Measure.OUTPUT: 10}, "output_tokens_per_minute")


def test_a_call_takes_from_every_limit_or_from_none():
    opened = book(granted(100), granted(1))
    short = opened.reserve({Measure.TOKENS: 101, Measure.CONCURRENCY: 1}, 0)
    assert isinstance(short, Shortage)
    assert short.slice.limit is TOKENS
    take(opened, 100)
    short = opened.reserve(CALL, 0)
    assert isinstance(short, Shortage)
    assert short.slice.limit is CALLS


def test_nothing_is_reserved_without_a_lease():
    opened = book(granted(100), granted(4))
    assert isinstance(opened.reserve(CALL, LEASE), Shortage)
    opened.close()
    assert isinstance(opened.reserve(CALL, 0), Shortage)
    assert isinstance(Book((CALLS,), 0).reserve(CALL, 0), Shortage)


def test_more_than_the_limit_itself_is_hopeless():
    opened = book(granted(0), granted(4))
    assert opened.refusal({Measure.TOKENS: 1001}, fresh=False).slice.limit is TOKENS
    assert opened.refusal({Measure.TOKENS: 1000}, fresh=True) is None


def test_what_the_store_has_just_denied_is_not_asked_for_again():
    opened = book(granted(100), granted(4))
    opened.slices["tokens_per_day"].deny(150)
    assert opened.refusal({Measure.TOKENS: 150}, fresh=True).amount == 150
    assert opened.refusal({Measure.TOKENS: 150}, fresh=False) is None
    assert opened.refusal({Measure.TOKENS: 149}, fresh=True) is None
    take(opened, 10).settle({})
    assert opened.refusal({Measure.TOKENS: 150}, fresh=True) is None


def test_what_was_not_used_is_given_back_once():
    opened = book(granted(100), granted(4))
    taken = take(opened, 60)
    assert taken.settle({Measure.TOKENS: 25})
    assert not taken.settle({})
    tokens, calls = opened.report([])
    assert (tokens.charged, tokens.refunded) == (60, 35)
    assert (calls.using, calls.need) == (0, 4)


def test_a_call_that_used_all_that_it_reserved_is_told_to_have_ended():
    """Else others go on believing that something may come back of it."""
    opened = Book((TOKENS,), 0)
    opened.report([MANY])
    opened.renew([granted(1000)], 0, LEASE)
    taken = opened.reserve({Measure.TOKENS: 1000}, 0)
    for _ in range(20):  # until what was taken is no news
        (report,) = opened.report([])
        opened.renew([granted(0, used=1000)], 0, LEASE)
    assert (report.charged, report.open, opened.changed) == (1000, 1000, False)
    assert taken.settle({Measure.TOKENS: 1000})
    assert opened.changed
    (report,) = opened.report([])
    opened.renew([granted(0, used=1000)], 0, LEASE)
    assert (report.refunded, report.open, opened.changed) == (0, 0, False)


def test_an_extended_reservation_is_settled_as_one():
    opened = book(granted(100), granted(4))
    taken, more = take(opened, 30), take(opened, 20, calls=0)
    taken.extend(more)
    assert not more.settle({})
    taken.settle({Measure.TOKENS: 40})
    (tokens, _) = opened.report([])
    assert (tokens.charged, tokens.refunded) == (50, 10)


def test_what_is_reserved_while_the_store_answers_counts_against_the_answer():
    opened = book(granted(100), granted(4))
    opened.report([MANY])
    take(opened, 30)
    opened.renew((granted(50), granted(2)), 0, LEASE)
    assert [piece.free for piece in opened.slices.values()] == [20, 1]


def test_between_reports_no_more_is_reserved_than_the_store_was_told():
    """It is what a lost replica is charged for."""
    opened = book(granted(1000), granted(4))
    take(opened, 30)
    (tokens, _) = opened.report([])
    assert tokens.risk == 60  # twice as much again
    opened.renew((granted(970), granted(3)), 0, LEASE)
    take(opened, 60, calls=0)
    short = opened.reserve({Measure.TOKENS: 1}, 0)
    assert isinstance(short, Shortage)
    assert isinstance(opened.reserve({Measure.TOKENS: 1}, 0, store_away=True), Reservation)
    (tokens, _) = opened.report([{Measure.TOKENS: 500}])
    assert tokens.risk == 500 + 2 * 61


def test_a_report_that_may_be_lost_binds_at_once():
    opened = book(granted(1000), granted(4))
    opened.report([])
    assert isinstance(opened.reserve({Measure.TOKENS: 1}, 0), Shortage)


def test_only_what_is_used_is_kept_when_others_are_short():
    opened = book(granted(100, recalled=True), granted(4, recalled=True))
    take(opened, 10)
    take(opened, 10).settle({})
    tokens, calls = opened.report([MANY])
    # As many tokens again as since the last report, and as many calls as were open at a time.
    assert (tokens.need - 10**9, calls.need) == (20, 2)
    tokens, calls = opened.report([])
    assert (tokens.need, calls.need) == (0, 1)


def test_a_refund_of_an_ended_window_is_not_credited_to_the_next():
    opened = book(granted(100, start=1), granted(4))
    taken = take(opened, 60)
    for start in (1, 2):
        opened.report([])
        opened.renew((granted(40, start=start, before=60), granted(4)), 0, LEASE)
    taken.settle({})
    (tokens, _) = opened.report([])
    assert (tokens.charged, tokens.refunded) == (60, 0)


def test_a_changed_limit_keeps_what_is_under_way():
    opened = book(granted(100), granted(4))
    taken = take(opened, 60)
    opened.follow((Limit("concurrency", Measure.CONCURRENCY, Window.HELD, 2),), 1)
    assert list(opened.slices) == ["concurrency"]
    assert opened.slices["concurrency"].using == 1
    assert taken.settle({})
    assert opened.slices["concurrency"].using == 0


def test_what_remains_and_when_it_is_back():
    minute = Limit("tokens_per_minute", Measure.TOKENS, Window.MINUTE, 600)
    opened = Book((minute,), 0)
    opened.report([MANY])
    opened.renew((granted(100, used=300),), 0, LEASE)
    (piece,) = opened.slices.values()
    assert piece.standing(0) == (300, 30_000)
    assert piece.standing(10_000) == (400, 20_000)
    assert opened.reserve({Measure.TOKENS: 60}, 0).settle({Measure.TOKENS: 50})
    assert piece.standing(0)[0] == 250
    assert piece.wait_for(140) == 10_000  # 40 are free, and 10 come back each second
    assert piece.wait_for(601) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "settle", "settle", "report"]), st.integers(1, 40)),
        max_size=60,
    ),
    st.randoms(use_true_random=False),
)
def test_every_reservation_is_charged_once_and_refunded_once(steps, random):
    """Whatever the order, and however often one is settled."""
    opened = book(granted(1000), granted(10))
    calls, settled, reserved, used = [], Counter(), 0, 0
    for step, amount in steps:
        if step == "take":
            taken = opened.reserve({Measure.TOKENS: amount, Measure.CONCURRENCY: 1}, 0)
            if isinstance(taken, Reservation):
                reserved += amount
                calls.append((taken, amount))
        elif step == "settle" and calls:
            index = random.randrange(len(calls))
            taken, most = calls[index]
            part = random.randint(0, most)
            settled[index] += 1
            assert taken.settle({Measure.TOKENS: part}) == (settled[index] == 1)
            used += part if settled[index] == 1 else 0
        elif step == "report":
            opened.report([MANY])
            free = [piece.free + piece.using for piece in opened.slices.values()]
            opened.renew([granted(amount) for amount in free], 0, LEASE)
    open_calls = [call for index, call in enumerate(calls) if not settled[index]]
    tokens, concurrent = opened.slices.values()
    outstanding = sum(amount for _, amount in open_calls)
    assert tokens.charged == reserved
    assert tokens.charged - tokens.refunded == used + outstanding
    assert (concurrent.using, concurrent.free) == (len(open_calls), 10 - len(open_calls))
