"""Every change of tenants and keys leaves an entry, with who made it, and nothing else does."""

import json

import pytest

from tenants.audit import MOST, STREAM, Change
from tenants.connection import Connection, RecordDamaged
from tenants.model import Tenant
from tenants.settings import InvalidRecord
from tenants.store import AlreadyExists, IssuedKey, KeyNotActive, Store

pytestmark = pytest.mark.anyio


async def written(store: Store) -> list[Change]:
    """The oldest first."""
    return (await store.audit.read(1000))[::-1]


async def test_each_change_says_who_did_what_to_whom(store: Store) -> None:
    ann, bob = store.acting_as("ann"), store.acting_as("bob")
    await ann.create_tenant(Tenant("gold", weight=2.0, tokens_per_day=5))
    await bob.update_tenant("gold", weight=3.0, tokens_per_day=None)
    await bob.disable_tenant("gold")
    issued = await ann.create_key("gold", models=["b", "a"])
    name = issued.key.public_id
    await ann.update_key(name, scopes=["read"])
    second = await bob.rotate_key(name, overlap=60)
    await bob.revoke_key(name)
    raw = await ann.admin_key.issue()
    await bob.admin_key.revoke()

    found = await written(store)
    expected = [
        ("ann", "tenant created", "gold", {"weight": 2.0, "disabled": False, "tokens_per_day": 5}),
        ("bob", "tenant changed", "gold", {"weight": 3.0, "tokens_per_day": None}),
        ("bob", "tenant changed", "gold", {"disabled": True}),
        (
            "ann",
            "key issued",
            name,
            {"tenant": "gold", "scopes": ["inference"], "models": ["a", "b"], "expires": None},
        ),
        ("ann", "key changed", name, {"tenant": "gold", "scopes": ["read"]}),
        (
            "bob",
            "key rotated",
            name,
            {"tenant": "gold", "new": second.key.public_id, "overlap": 60},
        ),
        ("bob", "key revoked", name, {"tenant": "gold"}),
        ("ann", "admin key issued", raw.split("-")[1], {}),
        ("bob", "admin key ended", "", {}),
    ]
    assert [(change.by, change.did, change.to, change.how) for change in found] == expected
    times = [change.at for change in found]
    assert times == sorted(times)
    assert issued.key.created <= times[3] <= issued.key.created + 5


async def test_no_secret_and_no_digest_is_in_it(store: Store, connection: Connection) -> None:
    await store.create_tenant(Tenant("gold"))
    issued: list[IssuedKey] = [await store.create_key("gold")]
    issued.append(await store.rotate_key(issued[0].key.public_id))
    raw = await store.admin_key.issue()
    kept = json.dumps(await connection.call(lambda client: client.xrange(STREAM)))
    secrets = [raw, *(one.raw for one in issued)]
    for hidden in (*(raw.split("-")[2] for raw in secrets), *(one.key.digest for one in issued)):
        assert hidden not in kept


async def test_what_changes_nothing_leaves_no_entry(store: Store) -> None:
    await store.create_tenant(Tenant("gold"))
    key = (await store.create_key("gold")).key.public_id
    await store.revoke_key(key)
    before = await written(store)
    await store.revoke_key(key)
    await store.admin_key.revoke()
    with pytest.raises(AlreadyExists):
        await store.create_tenant(Tenant("gold"))
    with pytest.raises(KeyNotActive):
        await store.update_key(key, disabled=True)
    with pytest.raises(InvalidRecord):
        await store.update_tenant("gold", weight=-1)
    assert await written(store) == before


async def test_it_is_read_a_page_at_a_time_the_newest_first(store: Store) -> None:
    for number in range(5):
        await store.create_tenant(Tenant(f"t{number}"))
    first = await store.audit.read(2)
    second = await store.audit.read(2, before=first[-1].id)
    last = await store.audit.read(2, before=second[-1].id)
    assert [change.to for change in (*first, *second, *last)] == ["t4", "t3", "t2", "t1", "t0"]
    for first_of_all in ("0-0", "00-0", "0-1"):
        assert await store.audit.read(2, before=first_of_all) == []
    for nonsense in ("x", "-", "1", "1-1-1", "(1-1", "9" * 40 + "-1"):
        with pytest.raises(InvalidRecord):
            await store.audit.read(2, before=nonsense)


async def test_its_length_is_bounded(store: Store, connection: Connection) -> None:
    async def fill(client) -> None:
        async with client.pipeline(transaction=False) as pipeline:
            for _ in range(MOST + 500):
                pipeline.xadd(STREAM, {"entry": "{}"})
            await pipeline.execute()

    await connection.call(fill)
    await store.create_tenant(Tenant("gold"))
    length = await connection.call(lambda client: client.xlen(STREAM))
    assert MOST <= length <= MOST + 100
    assert (await store.audit.read(1))[0].to == "gold"
    models = [f"{number:03d}" * 60 for number in range(100)]
    await store.create_key("gold", models=models)
    assert (await store.audit.read(1))[0].how == {
        "changed": ["expires", "models", "scopes", "tenant"]
    }


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (["SET", STREAM, "spoilt"], "WRONGTYPE"),
        (["XADD", STREAM, f"{2**64 - 1}-{2**64 - 1}", "entry", "{}"], "last possible ID"),
    ],
)
async def test_changes_are_made_and_noted_though_the_log_is_damaged(
    store: Store, connection: Connection, spoil: list[str], why: str
) -> None:
    """What stands in its place is kept under another name; each change finds a log again."""
    await store.create_tenant(Tenant("gold"))
    key = await store.create_key("gold")
    name = key.key.public_id
    changes = [
        ("tenant changed", lambda: store.update_tenant("gold", weight=3.0)),
        ("key issued", lambda: store.create_key("gold")),
        ("key changed", lambda: store.update_key(name, scopes=["read"])),
        ("key rotated", lambda: store.rotate_key(name, overlap=60)),
        ("key revoked", lambda: store.revoke_key(name)),
        ("admin key issued", store.admin_key.issue),
    ]
    for number, (did, change) in enumerate(changes, 1):
        await connection.call(lambda client: client.delete(STREAM))
        await connection.call(lambda client: client.execute_command(*spoil))
        await change()
        first, second = await written(store)
        assert (first.by, first.did, second.did) == ("watermaster", "damaged log put aside", did)
        assert why in first.how["was"]
        aside = await connection.call(lambda client: client.keys(f"{STREAM}-damaged-*"))
        assert first.to in aside
        assert len(aside) == number
    assert (await store.get_tenant("gold")).weight == 3.0
    assert (await store.get_key(name)).revoked


async def test_a_damaged_log_that_is_read_says_so(store: Store, connection: Connection) -> None:
    await connection.call(lambda client: client.set(STREAM, "spoilt"))
    with pytest.raises(RecordDamaged, match="the log of changes is damaged"):
        await store.audit.read(10)
