"""Who is on the store, and who was lately."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tenants.connection import Connection, cancelled
from tenants.questions import EVERY_SERVER, QUESTIONS, Answer, Question, Questions
from tenants.servers import KEPT_MS, SEEN, SERVERS, THERE_MS, Roll, Servers

pytestmark = pytest.mark.anyio


async def seen(connection: Connection, name: str, age: int) -> None:
    """As if a server had last been seen so many ms ago."""

    async def put(client) -> None:
        seconds, _ = await client.time()
        await client.zadd(SERVERS, {name: seconds * 1000 - age})

    await connection.call(put)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        await cancelled(*tasks)


async def heard_by(connection: Connection, channel: str, count: int = 1) -> None:
    """Wait until so many hear what is told there."""

    async def listeners() -> int:
        [(_, number)] = await connection.call(lambda client: client.pubsub_numsub(channel))
        return number

    async with asyncio.timeout(10):
        while await listeners() < count:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)


async def roll_of(connection: Connection, own: str = "own.1") -> Roll:
    """As that server sees it."""
    servers = Servers(connection, own)
    async with running(servers.run()):
        await until(lambda: servers.roll.there)
    return servers.roll


async def test_who_is_not_seen_any_more_is_gone_and_then_forgotten(connection):
    for name, age in (("quiet.1", THERE_MS - 5000), ("gone.1", THERE_MS), ("old.1", KEPT_MS + 1)):
        await seen(connection, name, age)
    roll = await roll_of(connection)
    assert roll == Roll(frozenset({"own.1", "quiet.1"}), frozenset({"gone.1"}))
    assert await connection.call(lambda client: client.zcard(SERVERS)) == 3
    assert 0 < await connection.call(lambda client: client.pttl(SERVERS)) <= KEPT_MS


async def test_who_leaves_is_gone_at_once(connection):
    await roll_of(connection, "leaving.1")
    assert "leaving.1" in (await roll_of(connection)).there
    await Servers(connection, "leaving.1").leave()
    assert await roll_of(connection) == Roll(frozenset({"own.1"}), frozenset({"leaving.1"}))


async def test_who_is_alone_is_told_of_a_newcomer_at_once(connection):
    first, second = Servers(connection, "first.1"), Servers(connection, "second.1")
    assert not first.alone  # nobody has looked
    async with running(first.follow()):
        async with running(first.run()):
            await until(lambda: first.alone)
        await heard_by(connection, SEEN)
        async with running(second.run()):
            await until(lambda: not first.alone)  # which looks no more by itself
            await until(lambda: second.roll.there)
            assert not second.alone
        await second.leave()
    assert (await roll_of(connection, "third.1")).there == {"first.1", "third.1"}


async def test_whose_place_another_has_taken_is_gone(connection):
    place, other = "0123456789abcdef.", "fedcba9876543210."
    for name, age in ((f"{place}1", 3000), (f"{other}1", 2000), (f"{other}2", 1000)):
        await seen(connection, name, age)
    roll = await roll_of(connection, f"{place}2")
    assert roll == Roll(
        frozenset({f"{place}2", f"{other}2"}), frozenset({f"{place}1", f"{other}1"})
    )


async def test_a_damaged_list_begins_anew(connection):
    await connection.call(lambda client: client.set(SERVERS, "text"))
    assert await roll_of(connection) == Roll(frozenset({"own.1"}))


async def test_a_question_is_counted_by_who_hears_it_and_answers_reach_who_asked(connection):
    asked, answered = [], []
    a, b = Questions(connection, "a.1"), Questions(connection, "b.1")
    await seen(connection, "a.1", 0)
    question = Question("q1", "a.1", "kind", "gold", "name")
    async with (
        running(
            a.follow(asked.append, answered.append),
            b.follow(asked.append, answered.append),
            connection.listen({EVERY_SERVER: lambda _: None}),
        ),
        asyncio.timeout(10),
    ):
        while (heard := await a.ask(question)).servers < 2:  # noqa: ASYNC110 - others connect
            await asyncio.sleep(0.005)
        assert heard.roll == Roll(frozenset({"a.1"}))
        await b.answer(question, {"known": [1]})
        await until(lambda: answered)
    assert set(asked) == {question}
    assert answered == [Answer("q1", "b.1", {"known": [1]})]


async def test_servers_older_than_questions_are_counted_as_deaf(connection):
    """They listen to cancellations, as every server does."""
    newer = Questions(connection, "a.1")
    question = Question("q1", "a.1", "kind", "gold", "name")
    async with (
        running(
            newer.follow(lambda _: None, lambda _: None),
            *(connection.listen({EVERY_SERVER: lambda _: None}) for _ in range(2)),
        ),
        asyncio.timeout(10),
    ):
        while ((heard := await newer.ask(question)).servers, heard.deaf) != (1, 1):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_what_a_newer_version_adds_is_passed_over(connection, caplog):
    asked = []
    newer = {"id": "q", "server": "s", "kind": "k", "tenant": "t", "name": "n", "within": "eu"}
    texts = ("{", "[]", "null", '{"id": "x"}', json.dumps(newer))

    async def tell(client: Any) -> None:
        for text in texts:
            await client.publish(QUESTIONS, text)

    follow = Questions(connection, "a.1").follow(asked.append, lambda _: None)
    async with running(follow), asyncio.timeout(10):
        while not (asked and "cannot be read" in caplog.text):  # it may begin to listen between two
            await connection.call(tell)
            await asyncio.sleep(0.01)
    assert set(asked) == {Question("q", "s", "k", "t", "n")}
