"""A record that somebody damaged is told apart, takes no other with it, and can be repaired."""

from collections.abc import Mapping

import pytest

from telemetry.clock import SystemClock
from tenants.audit import STREAM
from tenants.auth import Authenticator, AuthError, AuthReason
from tenants.connection import Connection, RecordDamaged, StoreUnavailable
from tenants.model import Tenant
from tenants.store import AlreadyExists, NotFound, Store

pytestmark = pytest.mark.anyio

Value = str | bytes
TENANTS: list[tuple[Mapping[str, Value], str]] = [
    ({"weight": "heavy"}, "weight is 'heavy'"),
    ({"weight": b"\xff\xfe"}, "weight is '��'"),
    ({"disabled": "perhaps"}, "disabled is 'perhaps'"),
    ({"tokens_per_day": "-1"}, "tokens_per_day is '-1'"),
    ({"on_expiry": "newer-than-this"}, "on_expiry is 'newer-than-this'"),
    ({"default_timeout_ms": "9", "max_timeout_ms": "8"}, "default_timeout_ms (9) is above"),
]
KEYS: list[tuple[Mapping[str, Value], str]] = [
    ({"scopes": "everything"}, "unknown scope 'everything'"),
    ({"models": b"\xff"}, "'�' is not a model id"),
    ({"expires": "soon"}, "expires is 'soon'"),
    ({"disabled": "2"}, "disabled is '2'"),
    ({"revoked": ""}, "revoked is ''"),
    ({"digest": "é" * 64}, "digest is none"),
]


@pytest.fixture
async def three(store: Store) -> Store:
    """With the tenants a, b and c."""
    for name in "abc":
        await store.create_tenant(Tenant(name, weight=2, tokens_per_day=9))
    return store


async def put(connection: Connection, name: str, fields: Mapping[str, Value]) -> None:
    async def write(client: object) -> None:
        await client.hset(name, mapping=fields)  # type: ignore[attr-defined]

    await connection.call(write)


@pytest.mark.parametrize(("fields", "fault"), TENANTS)
async def test_the_other_tenants_are_listed_beside_a_damaged_one(
    three: Store, connection: Connection, fields: Mapping[str, Value], fault: str
) -> None:
    await put(connection, "wm:tenant:b", fields)
    listed = await three.list_tenants()
    assert list(listed.found) == ["a", "c"]
    assert list(listed.damaged) == ["b"]
    assert "tenant 'b'" in listed.damaged["b"]
    assert fault in listed.damaged["b"]
    with pytest.raises(RecordDamaged) as caught:
        await three.get_tenant("b")
    assert str(caught.value) == listed.damaged["b"]


async def test_tenants_of_another_type_or_gone_are_told_apart(
    three: Store, connection: Connection
) -> None:
    await connection.call(lambda client: client.set("wm:tenant:a", "text"))
    await connection.call(lambda client: client.delete("wm:tenant:c"))
    listed = await three.list_tenants()
    assert list(listed.found) == ["b"]
    assert "it is no hash" in listed.damaged["a"]
    assert "it is not there" in listed.damaged["c"]
    with pytest.raises(RecordDamaged, match="no hash"):
        await three.update_tenant("a", weight=3)
    for name in "ac":
        made = await three.create_tenant(Tenant(name, weight=7))
        assert await three.get_tenant(name) == made
    with pytest.raises(AlreadyExists):
        await three.create_tenant(Tenant("b"))
    assert (await three.list_tenants()).damaged == {}


async def test_an_update_repairs_what_it_names_and_no_more(
    three: Store, connection: Connection
) -> None:
    made = await three.get_tenant("b")
    await put(connection, "wm:tenant:b", {"weight": "x", "disabled": "", "id": "d", "created": "-"})
    for changes in ({"weight": 1.0}, {"disabled": True}, {"tokens_per_day": 5}):
        with pytest.raises(RecordDamaged):
            await three.update_tenant("b", **changes)
    mended = await three.update_tenant("b", weight=3.0, disabled=False)
    assert (mended.weight, mended.disabled, mended.tokens_per_day) == (3.0, False, 9)
    assert 0 <= mended.created - made.created < 60
    assert await three.get_tenant("b") == mended


async def test_a_lost_setting_that_must_be_there_is_damage(
    three: Store, connection: Connection
) -> None:
    """Whether it was disabled cannot be known, so it is not taken for enabled."""
    await connection.call(lambda client: client.hdel("wm:tenant:b", "disabled", "version"))
    with pytest.raises(RecordDamaged, match="disabled is missing"):
        await three.get_tenant("b")
    assert (await three.disable_tenant("b")).disabled
    assert (await three.get_tenant("b")).disabled


async def test_what_a_newer_version_wrote_outlives_a_change_by_this_one(
    three: Store, connection: Connection
) -> None:
    """While servers are replaced one by one, an older one must not lift a newer limit."""
    await put(connection, "wm:tenant:b", {"images_per_day": "5"})
    await three.update_tenant("b", weight=3.0, tokens_per_day=None)
    record = await connection.call(lambda client: client.hgetall("wm:tenant:b"))
    assert record["images_per_day"] == "5"
    assert "tokens_per_day" not in record
    key = (await three.create_key("b", scopes=["read"])).key.public_id
    await put(connection, f"wm:key:{key}", {"networks": "10.0.0.0/8"})
    await three.update_key(key, models=["m"])
    second = (await three.rotate_key(key, 60)).key
    for name in (key, second.public_id):
        record = await connection.call(lambda client, n=name: client.hgetall(f"wm:key:{n}"))
        assert (record["networks"], record["models"]) == ("10.0.0.0/8", "m")
    assert await three.get_key(second.public_id) == second


@pytest.mark.parametrize(("fields", "fault"), KEYS)
async def test_the_other_keys_are_listed_beside_a_damaged_one(
    three: Store, connection: Connection, fields: Mapping[str, Value], fault: str
) -> None:
    good = (await three.create_key("a")).key
    bad = (await three.create_key("a")).key
    await put(connection, f"wm:key:{bad.public_id}", fields)
    await put(connection, "wm:tenant:a", {"weight": "x"})  # nor does its tenant's record matter
    listed = await three.list_keys("a")
    assert listed.found == {good.public_id: good}
    assert list(listed.damaged) == [bad.public_id]
    assert fault in listed.damaged[bad.public_id]
    assert bad.digest not in listed.damaged[bad.public_id]
    with pytest.raises(RecordDamaged):
        await three.get_key(bad.public_id)
    with pytest.raises(RecordDamaged):
        await three.rotate_key(bad.public_id)


async def test_a_damaged_key_is_refused_repaired_or_revoked(
    three: Store, connection: Connection
) -> None:
    issued = await three.create_key("a", scopes=["read"])
    name = issued.key.public_id
    await put(connection, f"wm:key:{name}", {"expires": "soon", "models": b"\xff"})
    clock = SystemClock()
    with pytest.raises(StoreUnavailable, match="expires is 'soon'"):
        await Authenticator(three, clock).authenticate(issued.raw)
    with pytest.raises(RecordDamaged):
        await three.update_key(name, models=[])
    assert (await three.update_key(name, models=[], expires=None)) == issued.key
    assert (await Authenticator(three, clock).authenticate(issued.raw)).key == issued.key

    await put(connection, f"wm:key:{name}", {"digest": "gone"})
    assert (await three.revoke_key(name)).revoked
    with pytest.raises(AuthError) as refused:
        await Authenticator(three, clock).authenticate(issued.raw)
    assert refused.value.reason == AuthReason.UNKNOWN
    assert (await three.list_keys("a")).damaged == {}
    last = (await three.audit.read(1))[0]
    assert (last.did, last.to, last.how) == ("key revoked", name, {"tenant": "a"})


@pytest.mark.parametrize("how", ["type", "tenant"])
async def test_a_key_of_nobody_is_revoked_and_stops_nobody_else(
    three: Store, connection: Connection, how: str
) -> None:
    lost, sound = [await three.create_key("a") for _ in range(2)]
    record = f"wm:key:{lost.key.public_id}"
    if how == "type":
        await connection.call(lambda client: client.set(record, "text"))
    else:
        await connection.call(lambda client: client.hdel(record, "tenant"))
    auth = Authenticator(three, SystemClock())
    with pytest.raises(RecordDamaged):
        await three.lookup(lost.key.public_id)
    with pytest.raises(StoreUnavailable):
        await auth.authenticate(lost.raw)
    assert (await auth.authenticate(sound.raw)).key == sound.key  # the store is not taken for away
    assert list((await three.list_keys("a")).damaged) == [lost.key.public_id]
    assert (await three.revoke_key(lost.key.public_id)).revoked
    assert (await three.list_keys("a")).damaged == {}
    with pytest.raises(NotFound):
        await three.revoke_key(lost.key.public_id)


@pytest.mark.parametrize("fields", [{}, {"digest": "é"}])
async def test_a_damaged_admin_key_opens_nothing_and_is_issued_anew(
    store: Store, connection: Connection, fields: Mapping[str, Value]
) -> None:
    raw = await store.admin_key.issue()
    await connection.call(lambda client: client.hdel("wm:admin-key", "digest"))
    if fields:
        await put(connection, "wm:admin-key", fields)
    assert not await store.admin_key.is_opened_by(raw)
    await connection.call(lambda client: client.set("wm:admin-key", "text"))
    again = await store.admin_key.issue()
    assert await store.admin_key.is_opened_by(again)


async def test_one_damaged_entry_of_the_log_of_changes_leaves_the_others(
    three: Store, connection: Connection
) -> None:
    newer = '{"by": "eve", "did": "tenant moved", "to": "a", "how": {}, "from": "here"}'
    for fields in (
        {"entry": "{"},
        {"entry": b"\xff"},
        {"entry": "[]"},
        {"x": "y"},
        {"entry": newer},
    ):
        await connection.call(lambda client, f=fields: client.xadd(STREAM, f))
    found = await three.audit.read(10)
    assert [change.did for change in found[:5]] == ["tenant moved"] + 4 * ["entry that is damaged"]
    assert found[0].by == "eve"
    assert [change.to for change in found[5:]] == ["c", "b", "a"]
