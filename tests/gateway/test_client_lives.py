"""Clients and streams that are closed, dropped or shared in the middle of their work."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.client import AsyncClient, BrokenStreamError, Client, RefusedError, RetryPolicy, scope
from telemetry.events import Cause
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually
from tests.gateway.test_client import ended, full, sent

pytestmark = pytest.mark.model  # the text is that of the default model

BODY = {"model": MODEL, "messages": HELLO}
ENDLESS = {**BODY, "ignore_eos": True}
__all__ = ["sent"]


@pytest.fixture
def endless(server: LiveServer) -> LiveServer:
    server.say("so it goes ", endless=True, step_seconds=0.002)
    return server


def reads(stream) -> Callable[[], str]:
    """Reads until it fails; returns what it was told."""

    def read() -> str:
        with pytest.raises(BrokenStreamError) as caught:
            for _ in stream:
                pass
        return str(caught.value)

    return read


def test_closing_a_client_ends_what_other_threads_have_under_way(endless):
    mine = Client(endless.url, endless.keys["gold"])
    with ThreadPoolExecutor(1) as pool, scope(task="closed-under-way"):
        call = pool.submit(mine.chat, **ENDLESS)
        eventually(lambda: endless.engine.status().load.running == 1)
        mine.close()
        with pytest.raises(RuntimeError, match="closed"):
            call.result(20)
    endless.assert_idle()


def test_a_stream_is_closed_while_another_thread_reads_it(endless):
    with (
        Client(endless.url, endless.keys["gold"]) as mine,
        ThreadPoolExecutor(1) as pool,
        scope(task="closed-meanwhile"),
    ):
        stream = mine.stream(**ENDLESS)
        next(stream)
        reading = pool.submit(reads(stream))
        stream.close()
        assert "closed" in reading.result(20)
        eventually(lambda: ended(endless, "closed-meanwhile"))
        stream.close()
    assert [end.cause for end in ended(endless, "closed-meanwhile")] == [Cause.DISCONNECTED]


def test_a_stream_is_closed_while_another_task_waits_for_its_next_chunk(endless):
    async def use() -> None:
        async with AsyncClient(endless.url, endless.keys["gold"]) as mine:
            stream = await mine.stream(**ENDLESS)
            await anext(stream)
            with endless.model.held():
                while True:
                    waiting = asyncio.create_task(anext(stream))
                    await asyncio.sleep(0.2)
                    if not waiting.done():
                        break
                await stream.aclose()
                with pytest.raises(BrokenStreamError, match="closed"):
                    await waiting

    asyncio.run(use())
    endless.assert_idle()


def test_a_stream_closed_early_does_not_end_as_if_it_were_complete(endless):
    with Client(endless.url, endless.keys["gold"]) as mine:
        stream = mine.stream(**ENDLESS)
        next(stream)
        stream.close()
        with pytest.raises(BrokenStreamError, match="closed"):
            next(stream)


def test_a_stream_that_is_complete_stays_so_when_it_is_closed(server):
    mine = Client(server.url, server.keys["gold"])
    with mine.stream(**BODY) as stream:
        assert list(stream)
        stream.close()
        assert list(stream) == []
        mine.close()  # and leaving the stream after that is no error


def test_clients_that_nobody_holds_leave_no_thread_behind(server):
    before = threading.active_count()
    for _ in range(3):
        Client(server.url, server.keys["gold"]).chat(**BODY)
    gc.collect()
    eventually(lambda: threading.active_count() <= before)


FORKED = """
import os, sys
from gateway.client import Client
mine = Client(*sys.argv[1:])
mine.backpressure()
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    mine.backpressure()
except RuntimeError as error:
    assert "another process's" in str(error)
    mine.close()
    os._exit(7)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_client_of_the_process_before_a_fork_is_told_apart(server):
    command = [sys.executable, "-c", FORKED, server.url, server.keys["gold"]]
    assert subprocess.run(command, check=False, timeout=60).returncode == 7


def test_another_event_loop_is_told_apart(server):
    mine = AsyncClient(server.url, server.keys["gold"])

    async def use() -> None:
        await mine.chat(**BODY)
        await mine.aclose()

    asyncio.run(use())
    with pytest.raises(RuntimeError, match="event loop"):
        asyncio.run(mine.chat(**BODY))


def test_many_short_lived_clients_on_many_threads_meet_no_storm(server, sent):
    server.say("so it goes ", endless=True, step_seconds=0.03)
    policy, calls = RetryPolicy(burst=3), 40

    def one(_: int) -> int:
        with Client(server.url, server.keys["small"], policy) as mine:
            with pytest.raises(RefusedError) as caught:
                mine.chat(**BODY)
            return caught.value.status

    with full(server):
        sent.clear()
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(one, range(calls))) == {429}
    assert calls < len(sent) <= 1.1 * calls + policy.burst
