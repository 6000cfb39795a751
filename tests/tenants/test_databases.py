"""Two deployments in two databases of one Redis server, where messages are heard in all of them."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from telemetry.lineage import Scope
from tenants.cancellations import Cancellation, Cancellations
from tenants.connection import Connection
from tenants.embedded import _binary
from tenants.servers import SEEN, Servers
from tests.tenants.test_servers import heard_by, running, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The socket of a server with 16 databases; the embedded one has a single one."""
    socket = tmp_path / "valkey.sock"
    options = {"port": "0", "unixsocket": str(socket), "save": "", "dir": str(tmp_path)}
    command = [_binary(), *(word for name, text in options.items() for word in (f"--{name}", text))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        yield str(socket)
        process.terminate()


@pytest.fixture
async def two(server: str) -> AsyncIterator[tuple[Connection, Connection]]:
    async with AsyncExitStack() as stack:
        connections = [Connection(f"unix://{server}?db={number}") for number in (0, 3)]
        for connection in connections:
            stack.push_async_callback(connection.close)
            await connection.reach(10)
        here, there = connections
        yield here, there


async def test_one_does_not_hear_what_the_other_cancels(two):
    here, there = map(Cancellations, two)
    heard: dict[str, list[Cancellation]] = {"here": [], "there": []}
    async with running(here.follow(heard["here"].append), there.follow(heard["there"].append)):
        async with asyncio.timeout(10):
            for one in (here, there):
                while await one.listeners() < 1:  # noqa: ASYNC110 - no event tells it
                    await asyncio.sleep(0.005)
        assert (await here.listeners(), await there.listeners()) == (1, 1)
        first, second = (Cancellation(name, Scope("gold", "tour")) for name in ("a", "b"))
        await there.tell(first)
        await here.tell(second)
        await until(lambda: heard["here"] and heard["there"])
    assert heard == {"here": [second], "there": [first]}


async def test_one_does_not_see_the_others_servers(two):
    here, there = Servers(two[0], "here.1"), Servers(two[1], "there.1")
    async with running(here.follow(), there.follow()):
        for connection in two:
            await heard_by(connection, connection.channel(SEEN))
        async with running(here.run(), there.run()):
            await until(lambda: here.alone and there.alone)
            await two[1].call(lambda client: client.publish(two[1].channel(SEEN), "last.1"))
            await until(lambda: not there.alone)
    assert here.alone
