"""The script of leases against every order of events: reports that come twice or are lost,
replicas that die or are only thought to, limits that change."""

import asyncio
import json
import random
import time
from datetime import date, timedelta

import pytest

from tenants.book import Book, Reservation
from tenants.connection import Connection
from tenants.leases import as_grant, as_row
from tenants.ledger.spending import windows_of
from tenants.limits import Limit, Measure, Window
from tenants.scripts import sources

pytestmark = [pytest.mark.anyio, pytest.mark.server]

LEASE = 10**12  # ns; what ends here ends by dying
STEPS = 60


def script_of(name: str) -> str:
    """The text of one local function of the script."""
    text = sources()["lease"]
    begin = text.index(f"local function {name}(")
    return text[begin : text.index("\nend\n", begin) + 5]


async def test_months_begin_as_in_the_calendar(connection):
    days = [(date(1970, 1, 1) + timedelta(n)) for n in range(0, 100_000, 13)]
    numbers = [(day - date(1970, 1, 1)).days for day in days]
    text = (
        script_of("month_start")
        + """
        local starts = {}
        for index, day in ipairs(ARGV) do starts[index] = month_start(tonumber(day)) end
        return starts"""
    )
    for page in range(0, len(numbers), 1000):
        given = numbers[page : page + 1000]
        found = await connection.call(lambda client, given=given: client.eval(text, 0, *given))
        expected = [n - day.day + 1 for n, day in zip(given, days[page:], strict=False)]
        assert found == expected


class World:
    """Replicas of one tenant, and the truth about what they did."""

    def __init__(self, connection: Connection, seed: int, *, journals: bool = False) -> None:
        self.connection = connection
        self.random = random.Random(seed)
        self.key = f"wm:limits:world{seed}"
        self.limits = (
            Limit("concurrency", Measure.CONCURRENCY, Window.HELD, self.random.randint(1, 6)),
            Limit("tokens_per_month", Measure.TOKENS, Window.MONTH, 1000),
        )
        self.calls = 0
        self.spent = 0  # of calls that are over, and of those that died: all they had reserved
        self.lapsed = False  # whether one ever was: its open calls hold places that others get
        self.journals = journals  # those come in with what was used, and that is all that counts
        self.replicas = {name: self.new() for name in "abc"}

    def new(self):
        self.calls += 1
        return {"book": Book(self.limits, 0), "life": self.calls, "open": [], "used": 0}

    def reserve(self, me):
        amount = self.random.choice((1, 20, 150, 400))
        demand = {Measure.CONCURRENCY: 1, Measure.TOKENS: amount}
        taken = me["book"].reserve(demand, 0)
        if isinstance(taken, Reservation):
            me["open"].append((taken, amount))
            return []
        return [demand]

    def settle(self, me):
        if me["open"]:
            taken, amount = me["open"].pop(self.random.randrange(len(me["open"])))
            used = self.random.randint(0, amount)
            assert taken.settle({Measure.TOKENS: used})
            self.spent += used
            me["used"] += used

    async def exchange(self, name, waiting=(), *, times=1, answered=True, lease=60_000):
        me = self.replicas[name]
        self.calls += 1
        rows = [as_row(report) for report in me["book"].report(waiting)]
        call = json.dumps([self.calls, False, rows])
        complete = json.dumps([self.journals, []])
        for _ in range(times):
            arguments = [f"{name}.{me['life']}", f"{name}.", str(lease), "600000", complete, call]
            (answer,) = await self.connection.run("lease", [self.key], arguments)
        if answered:
            me["book"].renew([as_grant(row) for row in answer], 0, LEASE)

    async def lapse(self, name, *, answered=True):
        """Its lease ends, and all others find it gone; it goes on within what it has told."""
        self.lapsed = True
        await self.exchange(name, answered=answered, lease=1)
        await asyncio.sleep(0.003)
        for other in self.replicas:
            if other != name:
                await self.exchange(other)

    async def die(self, name):
        """Whatever it had reserved, reported or not, may have been used."""
        me = self.replicas[name]
        if self.journals:
            used = sum(self.random.randint(0, amount) for _, amount in me["open"])
            await self.write_down(name, me["used"] + used)
        else:
            used = sum(amount for _, amount in me["open"])
        self.spent += used
        self.replicas[name] = self.new()

    async def write_down(self, name, used):
        """Its journal comes in, with what it `used` since it began."""
        start = windows_of(int(time.time()) // 3600)[Window.MONTH][0] * 1000
        place = f"wm:spent:{name}.{self.replicas[name]['life']}:month:{start}"
        field = f"{self.key[len('wm:limits:') :]}/tokens"
        await self.connection.call(lambda client: client.hset(place, field, used))

    def check(self):
        everybody = self.replicas.values()
        calls = sum(len(me["open"]) for me in everybody)
        assert self.lapsed or calls <= self.limits[0].amount
        reserved = sum(amount for me in everybody for _, amount in me["open"])
        assert self.spent + reserved <= self.limits[1].amount


@pytest.mark.parametrize("journals", [False, True])
@pytest.mark.parametrize("seed", range(40))
async def test_no_order_of_events_spends_more_than_the_limit(connection, seed, journals):
    world = World(connection, seed, journals=journals)
    for _ in range(STEPS):
        name = world.random.choice("abc")
        me = world.replicas[name]
        happens = ("call", "call", "call", "settle", "settle", "odd", "die", "lapse")
        match world.random.choice(happens):
            case "call":
                waiting = world.reserve(me)
                if waiting:
                    await world.exchange(name, waiting)
                    world.reserve(me)
            case "settle":
                world.settle(me)
                await world.exchange(name, times=world.random.randint(1, 2))
            case "odd":
                await world.exchange(name, answered=False)
            case "die" if world.random.random() < 0.2:
                await world.die(name)
            case "lapse" if seed % 2:
                await world.lapse(name, answered=world.random.random() < 0.5)
        world.check()


@pytest.mark.parametrize("journals", [False, True])
@pytest.mark.parametrize("seed", range(40, 50))
async def test_everything_comes_back_in_the_end(connection, seed, journals):
    """Even what the dead had reserved and not used, where their journals come in; and what those

    thought to be dead might have reserved.
    """
    world = World(connection, seed, journals=journals)
    for name in "abcabcabc":
        for _ in range(3):
            waiting = world.reserve(world.replicas[name])
            await world.exchange(name, waiting)
        if world.random.random() < 0.5:
            await world.lapse(name, answered=world.random.random() < 0.5)
            world.reserve(world.replicas[name])
            for _ in range(world.random.randint(0, 1)):
                await world.exchange(name)
        if journals and world.random.random() < 0.5:
            await world.die(name)
    for name in "abc":
        while world.replicas[name]["open"]:
            world.settle(world.replicas[name])
        await world.exchange(name)
    rest = {Measure.CONCURRENCY: world.limits[0].amount, Measure.TOKENS: 1000 - world.spent}
    await world.exchange("a", [rest])
    for name in "bcbc":  # they learn that one is short, and then give up what they do not use
        await world.exchange(name)
    await world.exchange("a", [rest])
    assert used_of(world, "a") == world.spent
    assert isinstance(world.replicas["a"]["book"].reserve(rest, 0), Reservation)


async def test_each_is_told_what_calls_of_the_others_may_leave_over(connection):
    """Of 1000 one replica's call reserves 600: another's 500 may be had once that is over."""
    world = World(connection, 99)
    a, b = (world.replicas[name]["book"] for name in "ab")
    first = {Measure.CONCURRENCY: 1, Measure.TOKENS: 600}
    await world.exchange("a", [first])
    taken = a.reserve(first, 0)
    assert isinstance(taken, Reservation)
    await world.exchange("a")
    await world.exchange("b", [{Measure.TOKENS: 500}])
    (short,) = [piece for piece in b.slices.values() if piece.limit.measure is Measure.TOKENS]
    assert (short.grant.used, short.grant.open, short.may_come_back()) == (600, 600, 600)
    assert taken.settle({Measure.TOKENS: 590})
    await world.exchange("a")
    await world.exchange("b", [{Measure.TOKENS: 500}])
    assert (short.grant.used, short.may_come_back()) == (590, 0)


async def granted(world, name, amount):
    """Reserve `amount` tokens, asking the store."""
    demand = {Measure.TOKENS: amount}
    await world.exchange(name, [demand])
    taken = world.replicas[name]["book"].reserve(demand, 0)
    assert isinstance(taken, Reservation)
    return taken


def used_of(world, name):
    return world.replicas[name]["book"].slices["tokens_per_month"].grant.used


@pytest.mark.parametrize("answered", [False, True])
async def test_one_that_comes_back_is_charged_what_it_reserved(connection, answered):
    """And not what it might have, nor twice what it had told before, answered or not."""
    world = World(connection, 100)
    await granted(world, "a", 100)
    await world.lapse("a", answered=answered)  # told of 100, and that it may reserve 200 more
    await world.exchange("b")
    assert used_of(world, "b") == 300
    a = world.replicas["a"]["book"]
    late = a.reserve({Measure.TOKENS: 30}, 0) if answered else a.reserve({}, 0)
    assert isinstance(late, Reservation)
    used = 130 if answered else 100
    for _ in range(2):
        await world.exchange("a", times=2)
        assert used_of(world, "a") == used
    late.settle({Measure.TOKENS: 10})
    await world.exchange("a")
    assert used_of(world, "a") == (110 if answered else 100)


async def test_a_call_from_before_it_was_thought_dead_does_not_bring_it_back(connection):
    """It arrives late, and says less of what may have been reserved than a later one did."""
    world = World(connection, 101)
    (await granted(world, "a", 100)).settle({Measure.TOKENS: 100})
    world.calls += 1
    rows = [as_row(report) for report in world.replicas["a"]["book"].report([])]
    early = [f"a.{world.replicas['a']['life']}", "a.", "1", "600000", "[false, []]"]
    early.append(json.dumps([world.calls, False, rows]))
    await world.exchange("a", [{Measure.TOKENS: 500}], lease=1)
    for _ in range(2):
        await asyncio.sleep(0.003)
        await world.exchange("b")
        assert used_of(world, "b") == 100 + 500 + 100  # reserved, asked for, as much as before
        await connection.run("lease", [world.key], early)


@pytest.mark.parametrize("lapsed", [False, True])
async def test_a_limit_that_is_put_back_is_charged_from_the_first_token(connection, lapsed):
    """The totals of what was opened before mean nothing for what is opened now."""
    world = World(connection, 102)
    (await granted(world, "a", 100)).settle({Measure.TOKENS: 100})
    await world.exchange("a")
    if lapsed:
        await world.lapse("a")
    world.replicas["a"]["book"].follow((), 1)
    world.replicas["a"]["book"].follow(world.limits, 2)
    await world.exchange("a", [{Measure.TOKENS: 50}])
    for _ in range(2):  # it learns that one is short, and then gives up what it does not use
        await world.exchange("b")
    before = used_of(world, "a")
    assert before >= 100
    await granted(world, "a", 50)
    await world.exchange("a")
    assert used_of(world, "a") == before + 50


async def test_usage_that_came_in_before_its_charge_is_not_taken_for_earlier_usage(connection):
    """The store has forgotten the slice, has the journal, and hears of the charge only then."""
    world = World(connection, 103, journals=True)
    (await granted(world, "a", 100)).settle({Measure.TOKENS: 100})
    world.replicas["a"]["used"] = 100
    await connection.call(lambda client: client.delete(world.key))
    await world.write_down("a", 100)
    await world.exchange("a")
    assert used_of(world, "a") == 100
    await world.die("a")
    await world.exchange("a")  # its successor knows that all of its journal came in
    assert used_of(world, "a") == 100
