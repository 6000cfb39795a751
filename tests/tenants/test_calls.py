"""Answers kept by idempotency key: whose they are, for how long, and how many."""

import asyncio
from dataclasses import replace

import pytest

from tenants import calls
from tenants.calls import CallName, Calls, CallState, Found
from tenants.connection import Connection

pytestmark = pytest.mark.anyio

NAME = CallName("gold", "key", "print")


@pytest.fixture
def kept(connection: Connection) -> Calls:
    return Calls(connection)


async def keep(kept: Calls, name: CallName, answer: str | None) -> None:
    assert (await kept.begin(name, "a", f"run-{name.key}")).state is CallState.NEW
    await kept.finish(name, f"run-{name.key}", answer)


async def test_a_call_is_computed_once_and_its_answer_told_to_every_replica(kept: Calls) -> None:
    found = await asyncio.gather(*(kept.begin(NAME, one, f"run-{one}") for one in "ab"))
    assert {one.state for one in found} == {CallState.NEW, CallState.RUNNING}
    first, second = "ab" if found[0].state is CallState.NEW else "ba"
    again = await kept.begin(NAME, first, f"run-{first}")
    assert again.state is CallState.NEW  # the answer was lost
    await asyncio.sleep(0.02)
    assert 10 <= (await kept.begin(NAME, second, f"run-{second}")).running_ms < 10_000
    await kept.finish(NAME, f"run-{second}", "not the second's to say")
    assert (await kept.begin(NAME, second, f"run-{second}")).state is CallState.RUNNING
    for _ in range(2):  # it may be sent again
        assert await kept.finish(NAME, f"run-{first}", "answer")
    for replica in ("a", "b"):
        assert await kept.begin(NAME, replica, "later") == Found(CallState.DONE, "answer")


async def test_a_key_stands_for_one_payload_of_one_tenant(kept: Calls) -> None:
    other = replace(NAME, print="another")
    await kept.begin(NAME, "a", "run")
    assert (await kept.begin(other, "b", "run-2")).state is CallState.OTHER
    await kept.finish(NAME, "run", "answer")
    assert (await kept.begin(other, "b", "run-2")).state is CallState.OTHER
    assert (await kept.begin(replace(NAME, tenant="bronze"), "a", "r")).state is CallState.NEW


async def test_a_failed_run_leaves_nothing_and_a_later_one_is_not_its_own(kept: Calls) -> None:
    await kept.begin(NAME, "a", "abandoned")
    assert (await kept.begin(NAME, "a", "again")).state is CallState.NEW
    await kept.drop(NAME, "abandoned")  # late: the record is the other run's
    assert (await kept.begin(NAME, "b", "run-b")).state is CallState.RUNNING
    await kept.drop(NAME, "again")
    assert (await kept.begin(NAME, "b", "run-b")).state is CallState.NEW


async def test_a_dead_replicas_call_is_free_after_its_lease(
    kept: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LEASE_MS", 300)
    await kept.begin(NAME, "a", "run-a")
    for _ in range(4):
        await asyncio.sleep(0.1)
        await kept.renew(NAME, "run-a")
    assert (await kept.begin(NAME, "b", "run-b")).state is CallState.RUNNING
    await asyncio.sleep(0.4)
    assert (await kept.begin(NAME, "b", "run-b")).state is CallState.NEW
    assert not await kept.finish(NAME, "run-a", "too late")
    assert (await kept.begin(NAME, "a", "run-c")).state is CallState.RUNNING


async def test_an_answer_too_large_is_remembered_as_such(kept: Calls) -> None:
    await keep(kept, NAME, None)
    assert await kept.begin(NAME, "b", "run") == Found(CallState.LOST)


async def test_answers_are_bounded_in_bytes_and_number_and_expire(
    kept: Calls, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MOST_BYTES", 100)
    monkeypatch.setattr(calls, "MOST_ANSWERS", 4)
    names = [replace(NAME, key=f"key-{number}") for number in range(9)]

    async def known() -> list[int]:
        return [
            number
            for number, name in enumerate(names)
            if await connection.call(lambda c, name=name: c.exists(f"wm:call:gold:{name.member}"))
        ]

    for name in names[:3]:
        await keep(kept, name, "x" * 40)
        await asyncio.sleep(0.005)  # the order is by the millisecond
    assert await known() == [1, 2]
    for name in names[3:6]:
        await keep(kept, name, "y")
    assert await known() == [2, 3, 4, 5]
    await keep(kept, replace(NAME, tenant="bronze", key="key-0"), "z" * 90)  # another's room
    assert len(await known()) == 4
    monkeypatch.setattr(calls, "KEPT_MS", 100)
    await keep(kept, names[6], "z" * 100)  # all of it
    assert await known() == [6]
    await asyncio.sleep(0.4)
    assert await known() == []
    await keep(kept, names[7], "w" * 100)  # what has expired takes no room
    assert await known() == [7]
    total = await connection.call(lambda c: c.hget("wm:call-bytes:gold", ""))
    assert int(total) == 100


@pytest.mark.parametrize("state", ["MOVED", "DONE", "", None])
async def test_a_record_of_another_form_is_neither_computed_again_nor_an_answer(
    kept: Calls, connection: Connection, state: str | None
) -> None:
    """A newer version's, say."""
    record = f"wm:call:gold:{NAME.member}"
    await keep(kept, NAME, "answer")
    if state is None:
        await connection.call(lambda client: client.set(record, "text"))
    else:
        await connection.call(lambda client: client.hset(record, "state", state))
        await connection.call(lambda client: client.hdel(record, "answer"))
    assert await kept.begin(NAME, "b", "run-b") == Found(CallState.UNREADABLE)


async def test_a_run_whose_beginning_is_lost_still_runs(
    kept: Calls, connection: Connection
) -> None:
    await kept.begin(NAME, "a", "run-a")
    record = f"wm:call:gold:{NAME.member}"
    await connection.call(lambda client: client.hset(record, "begun", "once"))
    assert await kept.begin(NAME, "b", "run-b") == Found(CallState.RUNNING, running_ms=0)
