"""What servers ask each other through the store, without the servers around it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from gateway import informant, inquirer
from gateway.asking import Answers, Asking
from gateway.informant import Informant
from gateway.inquirer import Inquirer
from tenants.connection import Connection, cancelled
from tenants.embedded import EmbeddedValkey
from tenants.questions import MOST_BYTES, Heard, Question, Questions
from tenants.servers import Roll, Servers


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def connection(valkey: EmbeddedValkey) -> AsyncIterator[Connection]:
    connection = Connection(valkey.start())
    await connection.call(lambda client: client.flushall())
    yield connection
    await connection.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all answer, a slow machine is waited for."""
    monkeypatch.setattr(inquirer, "WAIT_SECONDS", 60.0)
    monkeypatch.setattr(informant, "WAIT_SECONDS", 60.0)


class Server:
    """The part of one that asks and answers."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.servers = Servers(connection, name)
        self.questions = Questions(connection, name)
        self.inquirer = Inquirer(self.questions, self.servers, lambda: False, lambda: False)
        self.informant = Informant(self.questions, name)
        self.heard: list[Question] = []

    def hear(self, question: Question) -> None:
        self.heard.append(question)
        self.inquirer.hear(question)
        self.informant.hear(question)

    async def ask(self, name: str, tenant: str = "gold") -> Answers[int]:
        return await self.inquirer.ask("number", tenant, name, int)


@asynccontextmanager
async def running(connection: Connection, *names: str) -> AsyncIterator[list[Server]]:
    """Servers that hear each other."""
    async with AsyncExitStack() as stack:
        servers = [Server(connection, name) for name in names]
        for one in servers:
            for work in (
                one.servers.run(),
                one.questions.follow(one.hear, one.inquirer.take),
            ):
                stack.push_async_callback(cancelled, asyncio.create_task(work))
        await until(lambda: all(one.servers.roll.there for one in servers))
        probe = Question("probe", "nobody", "probe", "none", "none")
        while (await servers[0].questions.ask(probe)).servers < len(names):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await until(lambda: all(one.heard for one in servers))
        for one in servers:
            one.heard.clear()
        yield servers


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.005)


async def caught_up(servers: list[Server]) -> None:
    """Everything that was asked before has been heard."""
    last = Question("last", "nobody", "probe", "none", "none")
    await servers[0].questions.ask(last)
    await until(lambda: all(last in one.heard for one in servers))
    for one in servers:
        one.heard.remove(last)


def knows(number: int | None) -> Callable[[str, str], Any]:
    async def tell(tenant: str, name: str) -> int | None:
        return number if (tenant, name) == ("gold", "answer") else None

    return tell


async def hangs(_tenant: str, _name: str) -> None:
    await asyncio.Event().wait()


@pytest.mark.anyio
async def test_every_server_tells_its_part_and_all_that_heard_are_waited_for(connection, patient):
    async with running(connection, "a.1", "b.1", "c.1") as servers:
        for number, one in enumerate(servers):
            one.informant.attach("number", knows(number or None))
        a, b, c = servers
        assert await a.ask("answer") == Answers((1, 2), 0, 0)
        assert await b.ask("answer") == Answers((2,), 0, 0)  # what is known here is not asked
        assert await c.ask("other") == Answers((), 0, 0)
        assert await c.ask("answer", "bronze") == Answers((), 0, 0)


@pytest.mark.anyio
async def test_what_came_counts_though_others_hang_cannot_be_read_or_understood(connection):
    async with running(connection, "a.1", "b.1", "c.1", "d.1", "e.1") as (a, b, c, d, e):
        b.informant.attach("number", knows(7))
        c.informant.attach("number", knows("seven"))
        d.informant.attach("number", hangs)
        e.informant.attach("another kind", hangs)
        assert await a.ask("answer") == Answers((7,), 3, 0)


@pytest.mark.anyio
async def test_a_server_that_has_nothing_to_tell_of_yet_knows_nothing(connection, patient):
    async with running(connection, "a.1", "starting.1") as (a, _):
        assert await a.ask("answer") == Answers((), 0, 0)


@pytest.mark.anyio
async def test_an_answer_that_is_too_long_is_none(connection, caplog):
    async def tell(_tenant: str, _name: str) -> str:
        return "1" * MOST_BYTES

    async with running(connection, "a.1", "b.1") as (a, b):
        b.informant.attach("number", tell)
        assert await a.ask("answer") == Answers((), 1, 0)
    assert "is not answered" in caplog.text


@pytest.mark.anyio
async def test_a_flood_asks_no_more_at_a_time_than_a_tenant_and_all_may(connection):
    """Since nobody answers, what is asked at first is all that is asked at a time."""
    async with running(connection, "a.1", "b.1") as servers:
        servers[1].informant.attach("number", hangs)
        tenants = [f"t{number}" for number in range(12)]
        asked = [servers[0].ask(f"n{n}", tenant) for tenant in tenants for n in range(20)]
        asking = asyncio.gather(*asked)
        await until(lambda: len(servers[1].heard) >= inquirer.AT_A_TIME)
        await caught_up(servers)
        of_each = [sum(q.tenant == tenant for q in servers[1].heard) for tenant in tenants]
        assert max(of_each) == inquirer.OF_EACH_TENANT
        assert sum(of_each) == inquirer.AT_A_TIME
        answers = await asking
    assert {one.parts for one in answers} == {()}
    assert {one.silent for one in answers} <= {None, 1}
    assert servers[0].inquirer._waiting == servers[0].inquirer._asked == {}


@pytest.mark.anyio
async def test_who_waits_to_ask_the_same_shares_one_question(connection, patient):
    async with running(connection, "a.1", "b.1") as servers:
        release = asyncio.Event()

        async def tell(_tenant: str, name: str) -> int:
            await release.wait()
            return len(name)

        servers[1].informant.attach("number", tell)
        asking = asyncio.gather(*(servers[0].ask("same") for _ in range(100)))
        await until(lambda: servers[1].heard)
        release.set()
        assert {one.parts for one in await asking} == {(4,)}
        await caught_up(servers)
        assert len(servers[1].heard) == 1
        await servers[0].ask("same")  # it came later, and may have to be told what is newer
        await caught_up(servers)
        assert len(servers[1].heard) == 2


@pytest.mark.anyio
async def test_a_flood_of_questions_is_answered_in_turns_while_somebody_waits(connection):
    running_, most, told = 0, 0, 0
    release = asyncio.Event()

    async def tell(_tenant: str, _name: str) -> None:
        nonlocal running_, most, told
        told += 1
        running_ += 1
        most = max(most, running_)
        await release.wait()
        running_ -= 1

    one = Informant(Questions(connection, "b.1"), "b.1")
    one.attach("number", tell)
    for number in range(1000):
        one.hear(Question(f"q{number}", "a.1", "number", f"t{number % 8}", "name"))
    assert len(one._answering) == informant.MOST_WAITING
    await until(lambda: told == informant.AT_A_TIME)
    await asyncio.sleep(1.1 * inquirer.WAIT_SECONDS)  # nobody waits for the others any more
    release.set()
    await until(lambda: not one._answering)
    assert told == most == informant.AT_A_TIME


def test_servers_that_heard_and_are_not_of_this_store_count_as_silent():
    """Messages go to all databases of one Redis; what another's servers know is not for us."""
    asking = Asking(int)
    asking.expect(Heard(3, 0, Roll(frozenset({"own", "peer"}), frozenset({"left"}))))
    asking.take("stranger", 13)
    asking.take("own", None)
    assert not asking.done.is_set()
    asking.take("peer", 5)
    assert asking.done.is_set()
    assert asking.answers() == Answers((5,), 1, 1)


def test_answers_may_come_before_it_is_known_how_many_will():
    asking = Asking(int)
    asking.take("own", None)
    asking.take("peer", 5)
    assert asking.answers() == Answers((), None, 0)
    asking.expect(Heard(2, 0, Roll(frozenset({"own", "peer"}))))
    assert asking.done.is_set()
    assert asking.answers() == Answers((5,), 0, 0)


def test_who_is_there_and_out_of_touch_is_silent():
    asking = Asking(int)
    asking.expect(Heard(1, 0, Roll(frozenset({"own", "deaf for a moment"}))))
    asking.take("own", None)
    assert asking.done.is_set()
    assert asking.answers() == Answers((), 1, 0)
