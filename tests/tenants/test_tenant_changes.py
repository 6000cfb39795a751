"""Changes of keys and tenants are felt at once where the store is followed."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tenants.auth import AuthReason
from tenants.changes import Change
from tenants.connection import Connection, cancelled
from tenants.model import INFERENCE, READ, InvalidRecord, Tenant
from tenants.store import KeyNotActive, NotFound, Store
from tests.tenants.test_tenant_auth import WALL, World

pytestmark = pytest.mark.anyio


class Followed(World):
    """Its clock stands still, so that nothing in the cache grows old."""

    def __init__(self, store: Store, raw: str) -> None:
        super().__init__(store, raw)
        self.heard: list[Change] = []
        self.public_id = raw.split("-")[1]

    def hear(self, change: Change) -> None:
        self.heard.append(change)
        self.auth.forget(change)

    async def after(self, change: Awaitable[object], told: Change) -> None:
        """Make `change` and wait until it is told."""
        self.heard.clear()
        await change
        await eventually(lambda: told in self.heard)


async def eventually(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not check():  # noqa: ASYNC110 # what is checked is told by no event
            await asyncio.sleep(0.002)


@pytest.fixture
async def world(store: Store, connection: Connection) -> AsyncIterator[Followed]:
    await store.create_tenant(Tenant("gold"))
    world = Followed(store, (await store.create_key("gold")).raw)
    following = asyncio.create_task(store.follow(world.hear))
    await eventually_subscribed(connection)
    yield world
    following.cancel()
    await asyncio.wait([following])


async def eventually_subscribed(connection: Connection) -> None:
    async with asyncio.timeout(10):
        while True:
            [(_, count)] = await connection.call(lambda client: client.pubsub_numsub("wm:changes"))
            if count == 1:
                return
            await asyncio.sleep(0.002)


async def test_a_revoked_key_is_out_at_once(world: Followed, store: Store) -> None:
    await world.auth.authenticate(world.raw)
    await world.after(store.revoke_key(world.public_id), Change("key", world.public_id))
    assert await world.reason(world.raw) == AuthReason.REVOKED


async def test_a_disabled_key_is_out_at_once_and_comes_back(world: Followed, store: Store) -> None:
    await world.auth.authenticate(world.raw)
    told = Change("key", world.public_id)
    await world.after(store.update_key(world.public_id, disabled=True), told)
    assert await world.reason(world.raw) == AuthReason.DISABLED
    await world.after(store.update_key(world.public_id, disabled=False), told)
    await world.auth.authenticate(world.raw)


async def test_rights_and_end_of_a_key_change_at_once(world: Followed, store: Store) -> None:
    told = Change("key", world.public_id)
    await world.auth.authenticate(world.raw)
    end = int(time.time()) + 100
    changes = {"scopes": [READ], "models": ["m1"], "expires": end}
    await world.after(store.update_key(world.public_id, **changes), told)
    key = (await world.auth.authenticate(world.raw)).key
    assert (key.scopes, key.models, key.expires) == ({READ}, {"m1"}, end)
    assert key.allows(READ)
    assert not key.allows(INFERENCE)
    world.wait(100)
    assert await world.reason(world.raw) == AuthReason.EXPIRED


async def test_rotation_tells_of_the_old_keys_end(world: Followed, store: Store) -> None:
    await world.auth.authenticate(world.raw)
    told = Change("key", world.public_id)
    await world.after(store.rotate_key(world.public_id, overlap=0), told)
    assert await world.reason(world.raw) == AuthReason.EXPIRED


async def test_a_tenants_change_reaches_all_its_keys_and_no_others(
    world: Followed, store: Store
) -> None:
    await store.create_tenant(Tenant("bronze"))
    other = (await store.create_key("bronze")).raw
    second = (await store.create_key("gold")).raw
    for raw in (world.raw, second, other):
        await world.auth.authenticate(raw)
    await world.after(store.update_tenant("gold", weight=7.0), Change("tenant", "gold"))
    for raw in (world.raw, second):
        assert (await world.auth.authenticate(raw)).tenant.weight == 7.0
    await world.auth.authenticate(other)
    assert world.watched.lookups[other.split("-")[1]] == 1


async def test_an_answer_asked_for_before_a_change_is_not_kept(
    world: Followed, store: Store
) -> None:
    """Its reply may come after the news of a change that it does not know of."""
    world.watched.gate.clear()
    early = asyncio.create_task(world.auth.authenticate(world.raw))
    await eventually(lambda: world.watched.found == 1)
    await world.after(store.revoke_key(world.public_id), Change("key", world.public_id))
    world.watched.gate.set()
    await early
    assert await world.reason(world.raw) == AuthReason.REVOKED
    assert world.watched.lookups[world.public_id] == 2


async def test_a_changed_key_is_not_let_in_while_the_store_is_away(
    world: Followed, store: Store
) -> None:
    await world.auth.authenticate(world.raw)
    await world.after(store.revoke_key(world.public_id), Change("key", world.public_id))
    world.watched.away = True
    with pytest.raises(Exception, match="away"):
        await world.auth.authenticate(world.raw)


async def test_a_subscription_that_was_cut_comes_back(
    world: Followed, store: Store, connection: Connection
) -> None:
    await connection.call(lambda client: client.client_kill_filter(_type="pubsub"))
    await eventually_subscribed(connection)
    await world.after(store.revoke_key(world.public_id), Change("key", world.public_id))


async def test_what_has_ended_cannot_be_changed(store: Store, world: Followed) -> None:
    await store.update_key(world.public_id, expires=WALL + 1000)
    with pytest.raises(InvalidRecord, match="in the past"):
        await store.update_key(world.public_id, expires=1_000_000_000)
    assert (await store.get_key(world.public_id)).expires == WALL + 1000
    await store.update_key(world.public_id, expires=None)
    assert (await store.get_key(world.public_id)).expires is None
    await store.update_key(world.public_id, disabled=True)
    with pytest.raises(KeyNotActive):
        await store.rotate_key(world.public_id)
    await store.revoke_key(world.public_id)
    with pytest.raises(KeyNotActive):
        await store.update_key(world.public_id, disabled=False)
    with pytest.raises(NotFound):
        await store.update_key("0" * 12, disabled=True)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"scopes": ["root"]}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"models": ["a b"]}, "models"),
        ({"disabled": 1}, "disabled"),
        ({"expires": -1}, "expires"),
        ({"revoked": False}, "revoked"),
        ({"digest": "0"}, "digest"),
    ],
)
async def test_a_bad_change_of_a_key_names_its_field(
    store: Store, world: Followed, changes: dict[str, object], field: str
) -> None:
    before = await store.get_key(world.public_id)
    with pytest.raises(InvalidRecord) as refused:
        await store.update_key(world.public_id, **changes)
    assert refused.value.field == field
    assert await store.get_key(world.public_id) == before


async def test_a_listener_ends_when_told_to_even_while_it_connects(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.connection._CANCEL_SECONDS", 0.02)  # it waits most of the time
    for head_start in range(12):  # turns of the loop; at some of them one is swallowed
        connection = Connection(valkey_url)
        listening = asyncio.create_task(connection.listen({"channel": lambda _: None}))
        for _ in range(head_start):
            await asyncio.sleep(0)
        await asyncio.wait_for(cancelled(listening), 10)
        assert listening.done()
        await connection.close()
