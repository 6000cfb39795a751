"""Budgets at the end of their window: what a call is charged and given back counts in one of them.

The real script, with a clock that the test sets.
"""

import json
import random

import pytest

from tenants.book import Book, Reservation
from tenants.leases import as_grant, as_row
from tenants.limits import Limit, Measure, Window
from tenants.scripts import sources

pytestmark = [pytest.mark.anyio, pytest.mark.server]

HOUR = Limit("tokens_per_hour", Measure.TOKENS, Window.HOUR, 10_000)
KEY = "wm:limits:gold"
LEASE = 10**12  # ns; none ends here
FIRST = 1_000_000 * 3600  # the store's clock at first, in seconds; a full hour


class Store:
    """Its script of leases, at an instant of our choice."""

    def __init__(self, connection):
        self.connection = connection
        self.now = FIRST
        self.calls = 0

    async def renew(self, name, book, waiting=(), *, answered=True):
        rows = self.send(book, waiting)
        await self.answer(name, book, rows, answered=answered)

    def send(self, book, waiting=()):
        return [as_row(report) for report in book.report(waiting)]

    async def answer(self, name, book, rows, *, answered=True):
        self.calls += 1
        clock, time = "redis.call('TIME')", f"{{ '{self.now}', '0' }}"
        script = sources()["lease"]
        assert script.count(clock) == 1
        call = json.dumps([self.calls, False, rows])
        given = [f"{name}.1", f"{name}.", "600000", "90000000", "[false, []]", call]
        (grants,) = await self.connection.call(
            lambda client: client.eval(script.replace(clock, time), 1, KEY, *given)
        )
        if answered:
            book.renew([as_grant(row) for row in grants], 0, LEASE)


def new_book():
    return Book((HOUR,), 0)


async def ready(store, name, tokens):
    """A book whose next calls may take so many tokens without asking."""
    book = new_book()
    await store.renew(name, book, [{Measure.TOKENS: tokens}])
    return book


def take(book, tokens):
    taken = book.reserve({Measure.TOKENS: tokens}, 0, store_away=True)
    assert isinstance(taken, Reservation)
    return taken


def used_of(book):
    return book.slices["tokens_per_hour"].grant.used


async def test_a_call_that_the_store_hears_of_in_the_next_window_is_given_back_there(connection):
    """Charged there with all that it reserved, it would keep that from the tenant for a window."""
    store = Store(connection)
    book = await ready(store, "a", 8000)
    open_at_the_end, over_before = take(book, 4000), take(book, 3000)
    over_before.settle({Measure.TOKENS: 30})
    store.now += 3600
    await store.renew("a", book)
    open_at_the_end.settle({Measure.TOKENS: 40})
    await store.renew("a", book)
    assert used_of(book) == 30 + 40


async def test_what_an_earlier_window_was_charged_is_given_back_to_none(connection):
    """Not even where the call ends while the first answer of the new window is under way."""
    store = Store(connection)
    book = await ready(store, "a", 8000)
    early = [take(book, 1000) for _ in range(3)]
    await store.renew("a", book)
    early[0].settle({})
    store.now += 3600
    take(book, 500).settle({Measure.TOKENS: 500})
    rows = store.send(book)
    early[1].settle({})
    await store.answer("a", book, rows)
    early[2].settle({})
    await store.renew("a", book)
    assert used_of(book) == 500


@pytest.mark.parametrize("executed", [False, True])
async def test_a_report_whose_answer_is_lost_at_the_border_counts_where_it_was_made(
    connection, executed
):
    store = Store(connection)
    book = await ready(store, "a", 8000)
    call = take(book, 2000)
    rows = store.send(book)
    if executed:
        await store.answer("a", book, rows, answered=False)
    store.now += 3600
    await store.renew("a", book)
    call.settle({Measure.TOKENS: 100})
    await store.renew("a", book)
    assert used_of(book) == (0 if executed else 100)


class Replica:
    """A book and its calls; `told`: those that the store has heard of, answered or not."""

    def __init__(self, name, book):
        self.name, self.book = name, book
        self.calls, self.begun, self.told, self.unanswered = [], [], set(), False

    def take(self, amount):
        taken = self.book.reserve({Measure.TOKENS: amount}, 0, store_away=True)
        if isinstance(taken, Reservation):
            self.calls.append((taken, amount))
            self.begun.append(taken)

    async def renew(self, store, meanwhile=lambda _: None, *, answered=True):
        rows = store.send(self.book)
        self.told.update(self.begun)
        meanwhile(self)
        await store.answer(self.name, self.book, rows, answered=answered)
        self.unanswered = not answered


@pytest.mark.parametrize("seed", range(60))
async def test_a_window_is_charged_what_the_calls_used_that_began_in_it(connection, seed):
    """Those that the store hears of in it. No order of events makes it less; and more only where

    the answer to the last report before it was lost.
    """
    store, chance = Store(connection), random.Random(seed)
    replicas = [Replica(name, await ready(store, name, 3000)) for name in "ab"]
    used, exact, earlier = {}, True, set()

    def settle(one):
        if one.calls:
            taken, amount = one.calls.pop(chance.randrange(len(one.calls)))
            used[taken] = chance.randint(0, amount)
            taken.settle({Measure.TOKENS: used[taken]})

    for step in range(60):
        if step == 30:
            store.now += 3600
            earlier = {taken for one in replicas for taken in one.told}
            exact = not any(one.unanswered for one in replicas)
        one = chance.choice(replicas)
        match chance.choice(("take", "take", "settle", "settle", "renew", "lost")):
            case "take":
                one.take(chance.randint(1, 100))
            case "settle":
                settle(one)
            case what:
                meanwhile = chance.choice((lambda _: None, settle))
                await one.renew(store, meanwhile, answered=what == "renew")
    for one in replicas * 3:
        for _ in list(one.calls):
            settle(one)
        await one.renew(store)
    due = sum(amount for taken, amount in used.items() if taken not in earlier)
    charged = used_of(replicas[0].book)
    assert charged == due if exact else charged >= due
