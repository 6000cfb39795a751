"""Several replicas on one real store."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from telemetry.clock import SystemClock
from tenants.book import Reservation, Shortage
from tenants.connection import Connection, StoreUnavailable, cancelled
from tenants.departed import Departed
from tenants.embedded import EmbeddedValkey
from tenants.leases import Leases
from tenants.ledger.spending import windows_of
from tenants.limits import CALL, Measure
from tenants.model import Tenant
from tenants.replica import Replica, claim, dead_in

pytestmark = [pytest.mark.anyio, pytest.mark.server]

TOKENS = Measure.TOKENS


@asynccontextmanager
async def replica(
    url: str,
    name: str,
    lease: float = 30.0,
    life: str = "1",
    *,
    polite: bool = True,
    names: tuple[str, ...] = (),
    former: bool = False,
) -> AsyncIterator[Leases]:
    """A replica that lives for the block, and then, if `polite`, gives everything back.

    Of the dead `names`, and of its predecessors if `former`, all usage is in the store.
    """
    connection = Connection(url)
    departed = Departed(Replica(f"{name}.", f"{name}.{life}"))
    departed.names, departed.former = names, former
    leases = Leases(connection, SystemClock(), departed, lease)
    running = asyncio.create_task(leases.run())
    try:
        yield leases
    finally:
        await cancelled(running)
        if polite:
            await leases.close()
        await connection.close()


async def taken(leases: Leases, tenant: Tenant, **amounts: int) -> Reservation:
    answer = await leases.reserve(tenant, {Measure(name): n for name, n in amounts.items()})
    assert isinstance(answer, Reservation), answer
    return answer


async def refused(leases: Leases, tenant: Tenant, **amounts: int) -> Shortage:
    answer = await leases.reserve(tenant, {Measure(name): n for name, n in amounts.items()})
    assert isinstance(answer, Shortage)
    return answer


async def test_without_limits_the_store_is_not_asked(valkey_url, connection):
    async with replica(valkey_url, "a") as leases:
        await taken(leases, Tenant("gold"), requests=1, tokens=10**9)
        assert leases.counts.exchanges == 0


async def test_replicas_never_spend_more_than_the_budget_together(valkey_url, connection):
    tenant = Tenant("gold", tokens_per_day=1000)
    async with replica(valkey_url, "a") as a, replica(valkey_url, "b") as b:
        answers = await asyncio.gather(
            *(leases.reserve(tenant, {TOKENS: 100}) for leases in [a, b] * 32)
        )
        got = [answer for answer in answers if isinstance(answer, Reservation)]
        assert len(got) == 10
        for leases in (a, b):
            assert (await refused(leases, tenant, tokens=1)).slice.limit.name == "tokens_per_day"


async def test_what_was_not_used_can_be_used_by_another(valkey_url, connection):
    tenant = Tenant("gold", money_per_month=1.0)
    async with replica(valkey_url, "a") as a, replica(valkey_url, "b") as b:
        all_of_it = await taken(a, tenant, money=10**9)
        await refused(b, tenant, money=1)
        a.settle(all_of_it, {Measure.MONEY: 4 * 10**8})
        await taken(b, tenant, money=6 * 10**8)
        await refused(b, tenant, money=1)


async def test_one_slot_goes_from_hand_to_hand(valkey_url, connection):
    """The one that is free stands at the other replica, which gives it up when asked."""
    tenant = Tenant("gold", concurrency=1)
    async with replica(valkey_url, "a") as a, replica(valkey_url, "b") as b:
        for leases in [a, b, b, a]:
            slot = await taken(leases, tenant, concurrency=1)
            other = b if leases is a else a
            assert (await refused(other, tenant, concurrency=1)).slice.limit.name == "concurrency"
            leases.settle(slot, {})


async def test_a_busy_replica_gives_up_what_another_is_short_of(valkey_url, connection):
    """The first takes all that there is, and half of it would do for its load."""
    tenant = Tenant("gold", concurrency=8)

    over = False

    async def call(leases: Leases) -> None:
        slot = await taken(leases, tenant, concurrency=1)
        await asyncio.sleep(0.005)
        leases.settle(slot, {})

    async def keep_calling(leases: Leases) -> None:
        while not over:
            await call(leases)

    async with replica(valkey_url, "a") as a, replica(valkey_url, "b") as b:
        busy = [asyncio.create_task(keep_calling(a)) for _ in range(4)]
        await asyncio.sleep(0.05)
        for _ in range(10):
            await asyncio.gather(*(call(b) for _ in range(4)))
        over = True
        await asyncio.gather(*busy)


async def test_a_steady_load_needs_no_call_to_the_store(valkey_url, connection):
    tenant = Tenant("gold", requests_per_minute=10**6, concurrency=100, tokens_per_day=10**9)
    async with replica(valkey_url, "a") as leases:
        await taken(leases, tenant, requests=1, concurrency=1, tokens=1000)
        before = leases.counts.exchanges
        for _ in range(1000):
            call = await leases.reserve(tenant, {**CALL, TOKENS: 1000})
            assert isinstance(call, Reservation)
            leases.settle(call, {Measure.REQUESTS: 1, TOKENS: 100})
        assert leases.counts.exchanges < before + 20


async def test_a_lost_replicas_slice_comes_back_and_what_it_reserved_stays_spent(
    valkey_url, connection
):
    tenant = Tenant("gold", concurrency=4, tokens_per_day=1000)
    async with replica(valkey_url, "b") as leases:
        async with replica(valkey_url, "lost", lease=1.5, polite=False) as lost:
            for _ in range(3):
                await taken(lost, tenant, concurrency=1, tokens=100)
            await asyncio.sleep(0.8)  # until it has reported that nothing happens any more
        await refused(leases, tenant, concurrency=4)
        await asyncio.sleep(1.5)
        await taken(leases, tenant, concurrency=4, tokens=700)
        await refused(leases, tenant, tokens=1)


async def test_a_successor_takes_over_at_once(valkey_url, connection):
    tenant = Tenant("gold", concurrency=4)
    async with replica(valkey_url, "a", polite=False) as lost:
        await taken(lost, tenant, concurrency=4)
    async with replica(valkey_url, "a", life="2") as leases:
        await taken(leases, tenant, concurrency=4)


async def test_with_the_store_away_only_what_is_leased_is_used(tmp_path):
    tenant = Tenant("gold", tokens_per_day=1000)
    valkey = EmbeddedValkey(tmp_path)
    url = valkey.start()
    async with replica(url, "a") as leases, replica(url, "b") as other:
        await taken(other, tenant, tokens=1)
        await taken(leases, tenant, tokens=1)
        held = leases.book(tenant).slices["tokens_per_day"].free
        assert 0 < held < 999
        valkey.stop()
        await taken(leases, tenant, tokens=held)
        with pytest.raises(StoreUnavailable):
            await leases.reserve(tenant, {TOKENS: 1})
        assert leases.away
        valkey.start()
        for _ in range(400):
            await asyncio.sleep(0.05)
            if not leases.away:
                break
        await taken(leases, tenant, tokens=1)
    valkey.stop()


async def test_changed_limits_hold_at_once(valkey_url, connection):
    async with replica(valkey_url, "a") as leases:
        await taken(leases, Tenant("gold", tokens_per_day=1000), tokens=600)
        assert await refused(leases, Tenant("gold", tokens_per_day=700), tokens=101)
        await taken(leases, Tenant("gold", tokens_per_day=700), tokens=100)
        await taken(leases, Tenant("gold", tokens_per_day=2000), tokens=1300)
        await taken(leases, Tenant("gold"), tokens=5000)


async def test_a_minutes_bucket_fills_again_evenly(valkey_url, connection):
    tenant = Tenant("gold", requests_per_minute=600)
    async with replica(valkey_url, "a") as leases:
        await taken(leases, tenant, requests=600)
        short = await refused(leases, tenant, requests=10)
        assert 0 < short.slice.wait_for(10) <= 1000
        await asyncio.sleep(short.slice.wait_for(10) / 1000)
        await taken(leases, tenant, requests=10)


async def test_a_minutes_limit_that_is_lowered_is_whole_again_a_minute_later(
    valkey_url, connection
):
    """However much of the higher one was used; what open calls give back counts apart."""
    high, low = (Tenant("gold", tokens_per_minute=n) for n in (10**9, 600))
    async with replica(valkey_url, "a") as leases:
        leases.settle(await taken(leases, high, tokens=10**8), {TOKENS: 9 * 10**7})
        still_open = await taken(leases, high, tokens=5000)
        short = await refused(leases, low, tokens=600)
        assert 60_000 < short.slice.standing(0)[1] <= 5600 * 100
        leases.settle(still_open, {TOKENS: 0})
        short = await refused(leases, low, tokens=600)
        assert short.slice.standing(0)[1] <= 60_000
        assert short.slice.wait_for(600) <= 60_000


async def test_a_cancelled_wait_leaves_nothing_behind(valkey_url, connection):
    tenant = Tenant("gold", concurrency=2)
    async with replica(valkey_url, "a") as a, replica(valkey_url, "b") as b:
        await taken(a, tenant, concurrency=1)
        waits = [asyncio.create_task(b.reserve(tenant, CALL)) for _ in range(20)]
        await asyncio.sleep(0)
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
        await taken(b, tenant, concurrency=1)


async def test_a_script_that_fails_lets_nothing_through(valkey_url, connection):
    """The store answers, and its answer is an error: as if it were away."""
    tenant = Tenant("gold", tokens_per_day=1000)
    await connection.call(lambda client: client.config_set("maxmemory", "1"))
    try:
        async with replica(valkey_url, "a", polite=False) as a:
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    await a.reserve(tenant, {TOKENS: 1})
            assert a.away
            await connection.call(lambda client: client.config_set("maxmemory", "0"))
            await until(lambda: not a.away)
            await taken(a, tenant, tokens=1)
    finally:
        await connection.call(lambda client: client.config_set("maxmemory", "0"))


@pytest.mark.parametrize("damage", ["no book", "wrong type", "wrong inside"])
async def test_a_book_that_cannot_be_read_stops_its_tenant_alone(
    valkey_url, connection, damage, caplog
):
    gold, tin = Tenant("gold", tokens_per_day=1000), Tenant("tin", tokens_per_day=1000)
    async with replica(valkey_url, "a", lease=600.0) as a:
        await taken(a, gold, tokens=100)
        await taken(a, tin, tokens=100)
        await until(lambda: not a.book(gold).changed and not a.book(tin).changed)
        held = a.book(gold).slices["tokens_per_day"].free
        whole = await connection.call(lambda client: client.dump("wm:limits:gold"))
        await harm(connection, "wm:limits:gold", damage)
        a.settle(await taken(a, tin, tokens=200), {TOKENS: 150})
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await a.reserve(gold, {TOKENS: held + 1})  # it would have to be asked for
            await taken(a, tin, tokens=1)
        await taken(a, gold, tokens=held)  # as with the store away
        await until(lambda: not a.book(tin).changed)
        assert not a.away
        told = [record.message for record in caplog.records if record.levelname == "ERROR"]
        assert len(told) == 1
        assert "limits of tenant gold" in told[0]
        await connection.call(lambda client: client.restore("wm:limits:gold", 0, whole, True))
        await until(lambda: not a.book(gold).changed)
        refusal = await refused(a, gold, tokens=901 - held)  # what was used meanwhile is charged
        assert refusal.slice.grant.used == 100 + held


async def harm(connection: Connection, key: str, how: str) -> None:
    """Damage the book at `key` in one of the ways in which somebody may."""
    if how == "wrong inside":
        packed = "return redis.call('SET', KEYS[1], cmsgpack.pack({ replicas = 7 }))"
        await connection.call(lambda client: client.eval(packed, 1, key))
    elif how == "no book":
        await connection.call(lambda client: client.set(key, "no book at all"))
    else:
        await connection.call(lambda client: client.delete(key))
        await connection.call(lambda client: client.rpush(key, "a list"))


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


def test_a_place_is_taken_over_from_the_one_before(tmp_path):
    first, second = claim(tmp_path / "replicas"), claim(tmp_path / "replicas")
    assert first.place != second.place
    assert first.name.startswith(first.place)
    assert (tmp_path / "replicas/0.lock").read_text() == first.name
    assert dead_in(tmp_path / "replicas") == []
    script = (
        "import sys; from pathlib import Path; from tenants.replica import claim\n"
        "print(claim(Path(sys.argv[1])).name)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "replicas")]
    names = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(2)]
    third, fourth = (process.stdout.strip() for process in names)
    assert third.partition(".")[0] == fourth.partition(".")[0]  # the same place
    assert third != fourth
    assert dead_in(tmp_path / "replicas") == [fourth]


@pytest.mark.parametrize("other", [False, True])
async def test_of_a_dead_replicas_budget_only_what_its_calls_used_stays_spent(
    valkey_url, connection, other
):
    """Once its journals are in the store; its successor finds that out, or another replica."""
    tenant = Tenant("gold", tokens_per_day=1000, money_per_hour=1.0)
    used = {Measure.TOKENS: 50, Measure.MONEY: 5 * 10**7}

    async def spend(leases: Leases) -> None:
        answer = await leases.reserve(tenant, {Measure.TOKENS: 200, Measure.MONEY: 2 * 10**8})
        assert isinstance(answer, Reservation)
        leases.settle(answer, used)
        await taken(leases, tenant, tokens=600, money=6 * 10**8)  # open for ever

    async with replica(valkey_url, "a", polite=False) as a:
        await spend(a)
        await asyncio.sleep(1.5)  # it is told to the store, and nothing more is risked
    async with replica(valkey_url, "a", life="2", polite=False) as a:
        await refused(a, tenant, tokens=500)
        await taken(a, tenant, tokens=100)
        await asyncio.sleep(0.2)
    await write_down(connection, "a.1", Measure.TOKENS, 50 + 20)
    await write_down(connection, "a.1", Measure.MONEY, 5 * 10**7 + 3 * 10**7)
    await write_down(connection, "a.2", Measure.TOKENS, 0)
    told = {"names": ("a.1", "a.2")} if other else {"former": True}
    async with replica(valkey_url, "b" if other else "a", life="3", **told) as last:
        await refused(last, tenant, tokens=1000 - 70 + 1)
        await refused(last, tenant, money=10**9 - 8 * 10**7 + 1)
        rest = await taken(last, tenant, tokens=1000 - 70, money=10**9 - 8 * 10**7)
        last.settle(rest, {})
        await asyncio.sleep(0.2)
        await refused(last, tenant, tokens=1000 - 70 + 1)  # once


async def write_down(connection: Connection, name: str, measure: Measure, amount: int) -> None:
    """As the ledger does when a journal of `name` comes into the store."""
    for window, (start, _) in windows_of(int(time.time()) // 3600).items():
        place = f"wm:spent:{name}:{window}:{start * 1000}"
        await connection.call(
            lambda client, place=place: client.hset(place, f"gold/{measure}", amount)
        )
