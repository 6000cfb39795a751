import asyncio
import time

import pytest

from tenants import keys
from tenants.audit import STREAM
from tenants.connection import Connection, StoreError, StoreUnavailable
from tenants.model import INFERENCE, READ, InvalidRecord, Principal, Tenant
from tenants.reading import Listing
from tenants.store import AlreadyExists, KeyNotActive, NotFound, SchemaMismatch, Store

pytestmark = pytest.mark.anyio


async def test_a_tenant_reads_back_as_written(store: Store) -> None:
    before = int(time.time())
    written = await store.create_tenant(
        Tenant(
            "gold",
            weight=3.1,
            queue_requests=1,
            queue_tokens=2,
            default_timeout_ms=3,
            max_timeout_ms=4,
            default_max_tokens=5,
            max_max_tokens=6,
            tpot_target_ms=7,
            admission="goodput",
            on_infeasible="degrade",
        )
    )
    assert before <= written.created <= time.time() + 1
    assert written.weight == 3.1
    assert await store.get_tenant("gold") == written


async def test_a_tenant_written_before_there_were_choices_leaves_them_to_the_server(
    store: Store, connection: Connection
) -> None:
    fields = ["id", "gold", "weight", "3.0", "disabled", "0", "queue_tokens", "5"]
    names = ["wm:tenant:gold", "wm:tenants", STREAM]
    await connection.run("put_tenant", names, ["gold", "", "v1", "{}", "9", *fields])
    tenant = await store.get_tenant("gold")
    assert (tenant.admission, tenant.on_infeasible, tenant.tpot_target_ms) == (None, None, None)
    changed = await store.update_tenant("gold", admission="feasible")
    assert (changed.weight, changed.queue_tokens, changed.admission) == (3.0, 5, "feasible")
    assert await store.get_tenant("gold") == changed


async def test_a_tenant_is_created_once(store: Store) -> None:
    first = await store.create_tenant(Tenant("gold", weight=3))
    with pytest.raises(AlreadyExists, match="gold"):
        await store.create_tenant(Tenant("gold", weight=5))
    assert await store.ensure_tenant(Tenant("gold", weight=7)) == first
    assert (await store.ensure_tenant(Tenant("bronze", weight=7))).weight == 7


async def test_of_many_creators_at_once_one_succeeds(store: Store) -> None:
    results = await asyncio.gather(
        *(store.create_tenant(Tenant("gold", weight=1 + i)) for i in range(20)),
        return_exceptions=True,
    )
    created = [result for result in results if isinstance(result, Tenant)]
    assert len(created) == 1
    assert await store.get_tenant("gold") == created[0]
    assert sum(isinstance(result, AlreadyExists) for result in results) == 19


async def test_updates_change_only_what_they_name(store: Store) -> None:
    made = await store.create_tenant(Tenant("gold", weight=3, queue_requests=5, queue_tokens=7))
    changed = await store.update_tenant("gold", weight=2.5, queue_requests=None)
    assert changed == Tenant("gold", weight=2.5, queue_tokens=7, created=made.created)
    assert await store.get_tenant("gold") == changed
    assert (await store.disable_tenant("gold")).disabled
    assert (await store.get_tenant("gold")).disabled
    assert not (await store.update_tenant("gold", disabled=False)).disabled


async def test_a_bad_update_changes_nothing(store: Store) -> None:
    made = await store.create_tenant(Tenant("gold", max_timeout_ms=10))
    for changes in [
        {"weight": 0},
        {"default_timeout_ms": 11},
        {"id": "b"},
        {"created": 1},
        {"x": 1},
    ]:
        with pytest.raises(InvalidRecord) as caught:
            await store.update_tenant("gold", **changes)
        assert caught.value.field == next(iter(changes))
    assert await store.get_tenant("gold") == made
    with pytest.raises(NotFound, match="silver"):
        await store.update_tenant("silver", weight=2)


async def test_updates_at_once_lose_nothing(store: Store) -> None:
    await store.create_tenant(Tenant("gold"))
    await asyncio.gather(
        store.update_tenant("gold", weight=2),
        store.update_tenant("gold", queue_requests=3),
        store.update_tenant("gold", queue_tokens=4),
        store.update_tenant("gold", max_timeout_ms=5),
        store.update_tenant("gold", max_max_tokens=6),
    )
    tenant = await store.get_tenant("gold")
    assert (tenant.weight, tenant.queue_requests, tenant.queue_tokens) == (2, 3, 4)
    assert (tenant.max_timeout_ms, tenant.max_max_tokens) == (5, 6)


async def test_lists_tenants_by_id(store: Store) -> None:
    assert await store.list_tenants() == Listing({}, {})
    made = [await store.create_tenant(Tenant(name)) for name in ("b", "a", "c")]
    assert list((await store.list_tenants()).found) == ["a", "b", "c"]
    assert set((await store.list_tenants()).found.values()) == set(made)


async def test_lists_more_than_a_page(store: Store) -> None:
    for first in range(0, 1100, 100):
        some = range(first, first + 100)
        await asyncio.gather(*(store.create_tenant(Tenant(f"t{i:04}")) for i in some))
    listed = await store.list_tenants()
    assert list(listed.found) == [f"t{i:04}" for i in range(1100)]


async def test_issues_a_key(store: Store) -> None:
    tenant = await store.create_tenant(Tenant("gold"))
    end = int(time.time()) + 100
    issued = await store.create_key("gold", scopes=[READ], models=["m1", "m2"], expires=end)
    presented = keys.parse(issued.raw)
    assert presented is not None
    assert presented.public_id == issued.key.public_id
    assert keys.matches(presented, issued.key.digest)
    assert issued.key.scopes == {READ}
    assert issued.key.models == {"m1", "m2"}
    assert issued.key.expires == end
    assert abs(issued.key.created - time.time()) < 5
    assert await store.get_key(issued.key.public_id) == issued.key
    assert await store.lookup(issued.key.public_id) == Principal(tenant, issued.key, 0)


async def test_the_secret_is_nowhere_in_the_store(store: Store, connection: Connection) -> None:
    await store.create_tenant(Tenant("gold"))
    issued = await store.create_key("gold")
    secret = issued.raw.split("-")[2]
    record = await connection.call(lambda client: client.hgetall(f"wm:key:{issued.key.public_id}"))
    assert record["digest"] == issued.key.digest
    assert secret not in str(record)
    assert secret not in repr(issued)
    assert issued.key.digest not in repr(issued)
    names = await connection.call(lambda client: client.keys("*"))
    assert all(name.startswith("wm:") for name in names)


async def test_a_key_needs_a_tenant_and_good_settings(store: Store) -> None:
    with pytest.raises(NotFound, match="gold"):
        await store.create_key("gold")
    await store.create_tenant(Tenant("gold"))
    with pytest.raises(InvalidRecord, match="root"):
        await store.create_key("gold", scopes=["root"])
    with pytest.raises(InvalidRecord, match="past"):
        await store.create_key("gold", expires=int(time.time()) - 1)
    assert (await store.list_keys("gold")).found == {}
    with pytest.raises(NotFound):
        await store.list_keys("silver")
    with pytest.raises(NotFound):
        await store.get_key("0123456789ab")
    assert await store.lookup("0123456789ab") is None


async def test_a_revoked_key_stays_revoked(store: Store, connection: Connection) -> None:
    await store.create_tenant(Tenant("gold"))
    issued = await store.create_key("gold")
    public_id = issued.key.public_id
    assert (await store.revoke_key(public_id)).revoked
    assert (await store.revoke_key(public_id)).revoked
    assert (await store.get_key(public_id)).revoked
    with pytest.raises(NotFound):
        await store.revoke_key("0123456789ab")
    with pytest.raises(KeyNotActive):
        await store.rotate_key(public_id, overlap=10)
    remembered = await connection.call(lambda client: client.ttl(f"wm:key:{public_id}"))
    assert 89 * 86_400 < remembered <= 90 * 86_400


async def test_forgotten_keys_leave_the_index(store: Store, connection: Connection) -> None:
    await store.create_tenant(Tenant("gold"))
    gone = (await store.create_key("gold")).key.public_id
    index = "wm:tenant-keys:gold"
    await connection.call(lambda client: client.delete(f"wm:key:{gone}"))
    await connection.call(lambda client: client.zadd(index, {gone: time.time() - 1}))
    kept = (await store.create_key("gold")).key
    assert (await store.list_keys("gold")).found == {kept.public_id: kept}
    assert await connection.call(lambda client: client.zrange(index, 0, -1)) == [kept.public_id]


async def test_rotation_overlaps(store: Store) -> None:
    await store.create_tenant(Tenant("gold"))
    end = int(time.time()) + 1000
    old = (await store.create_key("gold", models=["m"], expires=end)).key
    new = await store.rotate_key(old.public_id, overlap=60)
    assert new.key.public_id != old.public_id
    assert (new.key.tenant, new.key.models, new.key.expires) == ("gold", {"m"}, end)
    assert new.key.scopes == {INFERENCE}
    assert await store.get_key(new.key.public_id) == new.key
    ending = (await store.get_key(old.public_id)).expires
    assert ending is not None
    assert abs(ending - time.time() - 60) < 3
    assert set((await store.list_keys("gold")).found) == {old.public_id, new.key.public_id}


@pytest.mark.parametrize("overlap", [1, 60])
async def test_a_rotated_key_lives_its_whole_overlap(store: Store, overlap: int) -> None:
    await store.create_tenant(Tenant("gold"))
    old = (await store.create_key("gold")).key.public_id
    for part in (0.2, 0.5, 0.9):  # of a second: a key ends with a whole one
        await asyncio.sleep((part - time.time()) % 1)
        asked = time.time()
        await store.rotate_key(old, overlap)
        ending = (await store.get_key(old)).expires
        assert ending is not None
        assert asked + overlap <= ending < time.time() + overlap + 1
        await store.update_key(old, expires=None)


async def test_rotation_never_prolongs_a_key(store: Store) -> None:
    await store.create_tenant(Tenant("gold"))
    end = int(time.time()) + 30
    old = (await store.create_key("gold", expires=end)).key
    await store.rotate_key(old.public_id, overlap=3600)
    assert (await store.get_key(old.public_id)).expires == end


@pytest.mark.parametrize("lives", [None, 1000])
async def test_a_key_rotated_again_passes_on_its_own_end(store: Store, lives: int | None) -> None:
    await store.create_tenant(Tenant("gold"))
    end = lives and int(time.time()) + lives
    old = (await store.create_key("gold", models=["m"], expires=end)).key
    ends = []
    for overlap in (60, 30):  # whoever mislaid the first new key takes another
        new = (await store.rotate_key(old.public_id, overlap)).key
        assert (new.expires, new.models) == (end, {"m"})
        assert await store.get_key(new.public_id) == new
        ends.append((await store.get_key(old.public_id)).expires)
    assert ends[1] < ends[0]
    third = (await store.rotate_key(new.public_id, overlap=60)).key
    assert third.expires == end
    assert set((await store.list_keys("gold")).found) >= {new.public_id, third.public_id}


async def test_rotation_after_the_end_was_set_anew_passes_that_on(store: Store) -> None:
    await store.create_tenant(Tenant("gold"))
    old = (await store.create_key("gold")).key
    await store.rotate_key(old.public_id, overlap=60)
    end = int(time.time()) + 500
    await store.update_key(old.public_id, expires=end)
    assert (await store.rotate_key(old.public_id, overlap=60)).key.expires == end


async def test_rotation_without_overlap_ends_the_old_key(store: Store) -> None:
    await store.create_tenant(Tenant("gold"))
    old = (await store.create_key("gold")).key
    await store.rotate_key(old.public_id)
    assert (await store.get_key(old.public_id)).expired(int(time.time()) + 1)
    with pytest.raises(KeyNotActive):
        await store.rotate_key(old.public_id)
    with pytest.raises(NotFound):
        await store.rotate_key("0123456789ab")
    with pytest.raises(InvalidRecord):
        await store.rotate_key(old.public_id, overlap=-1)


async def test_a_repeat_of_a_write_whose_answer_was_lost_is_harmless(
    store: Store, connection: Connection
) -> None:
    names = ["wm:tenant:gold", "wm:tenants", STREAM]
    write = ["gold", "", "v1", "{}", "9", "id", "gold", "weight", "3", "disabled", "0"]
    first = await connection.run("put_tenant", names, write)
    assert first
    assert await connection.run("put_tenant", names, write) == first
    assert await connection.run("put_tenant", names, ["gold", "", "v2", *write[3:]]) == ""

    names = ["wm:tenant:gold", "wm:key:aaaaaaaaaaaa", "wm:tenant-keys:gold", STREAM]
    rights = ["{}", "9", "tenant", "gold", "scopes", "inference", "models", "", "revoked", "0"]
    first = await connection.run("create_key", names, ["aaaaaaaaaaaa", "d1", "", "10", *rights])
    again = await connection.run("create_key", names, ["aaaaaaaaaaaa", "d1", "", "10", *rights])
    assert again == first
    other = await connection.run("create_key", names, ["aaaaaaaaaaaa", "d2", "", "10", *rights])
    assert other == "EXISTS"
    assert await connection.call(lambda client: client.xlen(STREAM)) == 2  # one for each

    names = ["wm:key:aaaaaaaaaaaa", "wm:key:bbbbbbbbbbbb", "wm:tenant-keys:gold", STREAM]
    rotation = ["aaaaaaaaaaaa", "bbbbbbbbbbbb", "d3" * 32, "0", "10", "{}", "9"]
    first = await connection.run("rotate_key", names, rotation)
    assert await connection.run("rotate_key", names, rotation) == first
    assert (await store.get_key("bbbbbbbbbbbb")).digest == "d3" * 32


async def test_refuses_a_newer_layout(valkey_url: str, connection: Connection) -> None:
    await connection.call(lambda client: client.set("wm:schema", "2"))
    with pytest.raises(SchemaMismatch, match="version 2, this Watermaster understands 1"):
        await Store.connect(valkey_url)


async def test_writes_its_layout_version(store: Store, connection: Connection) -> None:
    assert await connection.call(lambda client: client.get("wm:schema")) == "1"


async def test_an_emptied_store_is_noticed_once(store: Store, connection: Connection) -> None:
    assert not await store.check()
    await connection.call(lambda client: client.flushall())
    assert await store.check()
    assert not await store.check()
    assert await connection.call(lambda client: client.get("wm:schema")) == "1"


async def test_reconnects_when_connections_were_cut(store: Store, connection: Connection) -> None:
    await store.create_tenant(Tenant("gold"))
    await connection.call(lambda client: client.client_kill_filter(_type="normal", skipme=True))
    assert (await store.get_tenant("gold")).id == "gold"


async def test_survives_lost_scripts(store: Store, connection: Connection) -> None:
    await connection.call(lambda client: client.script_flush())
    assert (await store.create_tenant(Tenant("gold"))).id == "gold"


async def test_says_when_the_store_is_away(tmp_path: object) -> None:
    with pytest.raises(StoreUnavailable):
        await Store.connect(f"unix://{tmp_path}/nobody.sock", patience=0.1)


async def test_a_bad_url_is_refused_without_repeating_it() -> None:
    for url in [
        "http://user:hunter2@host",
        "host:6379/hunter2",
        "redis://h:hunter2/0",
        "redis://:hunter2@host/first",
        "rediss://:hunter2@host:6379/1/2",
    ]:
        with pytest.raises(StoreError) as caught:
            await Store.connect(url, patience=0.1)
        assert "redis://host:6379/0" in str(caught.value)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "option",
    ["no_such=1", "ssl_cert_reqs=none", "retry=1", "decode_responses=no", "connection_class=x"],
)
async def test_an_option_of_the_url_that_cannot_be_used_is_refused(option: str) -> None:
    with pytest.raises(StoreError, match="an option of the store's URL") as caught:
        await Store.connect(f"redis://:hunter2@localhost:1/0?{option}", patience=0.1)
    assert "hunter2" not in str(caught.value)


async def test_options_of_the_url_are_taken(valkey_url: str) -> None:
    store = await Store.connect(f"{valkey_url}?socket_timeout=1.5&client_name=wm", patience=5)
    assert await store.connection.call(lambda client: client.client_getname()) == "wm"
    await store.close()


async def test_a_store_that_runs_no_scripts_is_as_good_as_away(
    valkey_url: str, store: Store, connection: Connection
) -> None:
    """A user who may read and write, and no more, can do nothing with it."""
    rules = ("on", ">secret", "~wm:*", "&wm:*", "+@all", "-@scripting")
    await connection.call(lambda client: client.execute_command("acl", "setuser", "wm", *rules))
    try:
        restricted = await Store.connect(f"{valkey_url}?username=wm&password=secret")
        with pytest.raises(StoreUnavailable, match="no permissions"):
            await restricted.check()
        await restricted.close()
    finally:
        await connection.call(lambda client: client.execute_command("acl", "deluser", "wm"))
    assert not await store.check()


async def test_a_refused_write_is_said_to_be_one(
    valkey_url: str, store: Store, connection: Connection
) -> None:
    await store.create_tenant(Tenant("gold"))
    await connection.call(lambda client: client.config_set("maxmemory", "1"))
    try:
        with pytest.raises(StoreUnavailable, match="memory"):
            await store.create_key("gold")
        with pytest.raises(StoreUnavailable, match="memory"):
            await store.check()
        full = await Store.connect(valkey_url)  # to read what is there
        assert (await full.get_tenant("gold")).id == "gold"
        await full.close()
    finally:
        await connection.call(lambda client: client.config_set("maxmemory", "0"))
    assert not await store.check()
    assert (await store.list_keys("gold")).found == {}


async def test_a_key_is_not_made_or_changed_to_allow_nothing_but_auto(store: Store) -> None:
    await store.create_tenant(Tenant("gold"))
    with pytest.raises(InvalidRecord, match="'auto' is no model"):
        await store.create_key("gold", models=["auto"])
    key = await store.create_key("gold", models=["small"])
    with pytest.raises(InvalidRecord, match="'auto' is no model"):
        await store.update_key(key.key.public_id, models=["small", "auto"])
    assert (await store.get_key(key.key.public_id)).models == {"small"}
