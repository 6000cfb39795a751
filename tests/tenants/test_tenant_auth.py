import asyncio
import logging
import time
from collections import Counter
from dataclasses import replace

import pytest

from telemetry.clock import VirtualClock
from telemetry.units import SECOND
from tenants.auth import Authenticator, AuthError, AuthReason
from tenants.connection import Connection, StoreUnavailable
from tenants.keys import new_key
from tenants.model import Principal, Tenant
from tenants.store import Store

pytestmark = pytest.mark.anyio

WALL = 4_000_000_000  # Unix seconds on the server's clock, which is decades ahead of the store's
START = 5  # monotonic ns


class Watched:
    """The real store, with its lookups counted, held back, or cut off. Time passes as here."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        self.store = store
        self.clock = clock
        self.lookups: Counter[str] = Counter()
        self.found = 0
        self.away = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def lookup(self, public_id: str) -> Principal | None:
        self.lookups[public_id] += 1
        found = await self.store.lookup(public_id)
        self.found += 1
        await self.gate.wait()
        if self.away:
            raise StoreUnavailable("the store is away")
        return found and replace(found, read_at=found.read_at + self.clock.now() - START)


class World:
    def __init__(self, store: Store, raw: str, **options: float) -> None:
        self.clock = VirtualClock(start=START, epoch=WALL * SECOND)
        self.watched = Watched(store, self.clock)
        self.known_away = False
        away = lambda: self.known_away  # noqa: E731
        self.auth = Authenticator(self.watched, self.clock, away, **options)  # type: ignore[arg-type]
        self.raw = raw

    def wait(self, seconds: float) -> None:
        self.clock.advance(round(seconds * SECOND))

    async def reason(self, raw: str | None) -> AuthReason:
        with pytest.raises(AuthError) as caught:
            await self.auth.authenticate(raw)
        assert not raw or raw not in str(caught.value)
        return caught.value.reason


@pytest.fixture
async def world(store: Store) -> World:
    await store.create_tenant(Tenant("gold", weight=3))
    issued = await store.create_key("gold", expires=int(time.time()) + 100)
    return World(store, issued.raw)


async def test_lets_a_good_key_in(world: World) -> None:
    principal = await world.auth.authenticate(world.raw)
    assert principal.tenant.id == "gold"
    assert principal.tenant.weight == 3
    assert principal.key.public_id == world.raw.split("-")[1]


async def test_says_why_a_key_is_not_accepted(world: World, store: Store) -> None:
    assert await world.reason(None) == AuthReason.MISSING
    assert await world.reason("") == AuthReason.MISSING
    assert await world.reason("sk-nothing-like-it") == AuthReason.MALFORMED
    assert not world.watched.lookups
    assert await world.reason(new_key()[0]) == AuthReason.UNKNOWN
    world.wait(100)
    assert await world.reason(world.raw) == AuthReason.EXPIRED
    await store.revoke_key(world.raw.split("-")[1])
    world.wait(1)
    assert await world.reason(world.raw) == AuthReason.REVOKED


async def test_a_key_ends_by_the_stores_clock(world: World) -> None:
    """Ours is decades ahead. The store is asked for its own once, and is away from then on."""
    world.wait(0.5)
    await world.auth.authenticate(world.raw)
    world.watched.away = True
    world.wait(97)
    await world.auth.authenticate(world.raw)
    world.wait(4)
    assert await world.reason(world.raw) == AuthReason.EXPIRED


async def test_a_disabled_tenant_is_out_within_a_second(world: World, store: Store) -> None:
    await world.auth.authenticate(world.raw)
    await store.disable_tenant("gold")
    world.wait(1)
    assert await world.reason(world.raw) == AuthReason.TENANT_DISABLED
    await store.update_tenant("gold", disabled=False)
    world.wait(1)
    await world.auth.authenticate(world.raw)


async def test_the_state_of_a_key_is_told_only_to_its_holder(world: World, store: Store) -> None:
    _, public_id, _ = world.raw.split("-")
    await store.revoke_key(public_id)
    forged = f"wm-{public_id}-{new_key()[0].split('-')[2]}"
    assert await world.reason(forged) == AuthReason.UNKNOWN
    assert await world.reason(world.raw) == AuthReason.REVOKED


async def test_asks_the_store_about_once_a_second_for_a_key(world: World) -> None:
    _, public_id, _ = world.raw.split("-")
    for _ in range(10):
        await world.auth.authenticate(world.raw)
    assert world.watched.lookups[public_id] == 1
    world.wait(0.899)
    await world.auth.authenticate(world.raw)
    assert world.watched.lookups[public_id] == 1
    world.wait(0.001)
    await world.auth.authenticate(world.raw)
    assert world.watched.lookups[public_id] == 2


async def test_remembers_unknown_keys_too(world: World) -> None:
    raw, public_id, _ = new_key()
    for _ in range(5):
        await world.reason(raw)
    assert world.watched.lookups[public_id] == 1
    world.wait(1)
    await world.reason(raw)
    assert world.watched.lookups[public_id] == 2


async def test_callers_at_once_share_one_lookup(world: World) -> None:
    world.watched.gate.clear()
    callers = [asyncio.create_task(world.auth.authenticate(world.raw)) for _ in range(50)]
    await asyncio.sleep(0)
    callers[0].cancel()  # the one that asked first hangs up
    await asyncio.sleep(0)
    world.watched.gate.set()
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert all(isinstance(result, Principal) for result in results[1:])
    assert world.watched.lookups.total() == 1


async def test_with_the_store_away_known_keys_work_for_a_while(world: World) -> None:
    _, public_id, _ = world.raw.split("-")
    await world.auth.authenticate(world.raw)
    world.watched.away = True
    world.wait(50)
    for _ in range(10):
        await world.auth.authenticate(world.raw)
    assert world.watched.lookups[public_id] == 2, "an absent store is tried once a second"
    world.wait(48)  # it ends at a whole second, and was created in the midst of one
    await world.auth.authenticate(world.raw)
    world.wait(3)
    assert await world.reason(world.raw) == AuthReason.EXPIRED  # by its own record
    world.wait(200)
    with pytest.raises(StoreUnavailable):
        await world.auth.authenticate(world.raw)
    world.watched.away = False
    world.wait(1)
    assert await world.reason(world.raw) == AuthReason.EXPIRED


async def test_nobody_waits_for_a_store_that_is_known_to_be_away(store: Store) -> None:
    """Who may come in, that is; and only for as long as what was known is good."""
    await store.create_tenant(Tenant("gold"))
    world = World(store, (await store.create_key("gold")).raw)
    await world.auth.authenticate(world.raw)
    world.watched.away = world.known_away = True
    for _ in range(9):
        world.wait(30)
        assert (await world.auth.authenticate(world.raw)).tenant.id == "gold"
    assert world.watched.lookups.total() == 1
    world.wait(31)
    with pytest.raises(StoreUnavailable):
        await world.auth.authenticate(world.raw)
    world.watched.away = world.known_away = False
    world.wait(2)
    await world.auth.authenticate(world.raw)
    assert world.watched.lookups.total() == 3


@pytest.mark.parametrize("damage", ["a value", "its type"])
async def test_a_damaged_record_stops_its_own_tenant_alone(
    store: Store, connection: Connection, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    await store.create_tenant(Tenant("gold"))
    await store.create_tenant(Tenant("tin"))
    gold, tin = [(await store.create_key(name)).raw for name in ("gold", "tin")]
    world = World(store, gold)
    if damage == "a value":
        await connection.call(lambda client: client.hset("wm:tenant:gold", "weight", "heavy"))
    else:
        await connection.call(lambda client: client.set("wm:tenant:gold", "text"))
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await world.auth.authenticate(gold)
    assert (await world.auth.authenticate(tin)).tenant.id == "tin"
    assert caplog.text.count("cannot be checked") == 1
    await connection.call(lambda client: client.delete("wm:tenant:gold"))
    await store.create_tenant(Tenant("gold"))
    assert (await world.auth.authenticate(gold)).tenant.id == "gold"


async def test_with_the_store_away_an_unseen_key_is_not_called_unknown(world: World) -> None:
    world.watched.away = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await world.auth.authenticate(world.raw)
    assert world.watched.lookups.total() == 1
    world.watched.away = False
    world.wait(1)
    assert (await world.auth.authenticate(world.raw)).tenant.id == "gold"


async def test_a_key_once_unknown_is_not_called_so_while_the_store_is_away(world: World) -> None:
    raw = new_key()[0]
    await world.reason(raw)
    world.watched.away = True
    world.wait(1)
    with pytest.raises(StoreUnavailable):
        await world.auth.authenticate(raw)


async def test_a_flood_of_invented_keys_pushes_no_real_one_out(world: World, store: Store) -> None:
    world.auth = Authenticator(world.watched, world.clock, capacity=10)
    await world.auth.authenticate(world.raw)
    for _ in range(30):
        await world.reason(new_key()[0])
    assert len(world.auth._unknown._entries) == 10
    world.watched.away = True
    world.wait(1)
    await world.auth.authenticate(world.raw)
    await asyncio.sleep(0)
    assert not world.auth._lookups


async def test_the_key_used_least_recently_goes_first(world: World, store: Store) -> None:
    world.auth = Authenticator(world.watched, world.clock, capacity=2)
    others = [
        (await store.create_key("gold", expires=int(time.time()) + 100)).raw for _ in range(2)
    ]
    for raw in (world.raw, others[0], world.raw, others[1]):
        await world.auth.authenticate(raw)
    await world.auth.authenticate(world.raw)
    assert world.watched.lookups[world.raw.split("-")[1]] == 1
    await world.auth.authenticate(others[0])
    assert world.watched.lookups[others[0].split("-")[1]] == 2


async def test_no_secret_is_logged(
    world: World, caplog: pytest.LogCaptureFixture, store: Store
) -> None:
    caplog.set_level(logging.DEBUG)
    principal = await world.auth.authenticate(world.raw)
    secret = world.raw.split("-")[2]
    assert secret not in repr(principal)
    assert principal.key.digest not in repr(principal)
    assert secret not in caplog.text
    assert principal.key.digest not in caplog.text


@pytest.mark.parametrize("options", [{"ttl": 0}, {"ttl": 1.5}, {"stale_if_error": -1}])
async def test_refuses_options_that_break_the_promise(
    store: Store, options: dict[str, float]
) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        World(store, "", **options)
