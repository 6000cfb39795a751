"""How long a server lives: until a signal or a lost engine, and how it then winds down."""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterable

from engine.host.engine import Engine

logger = logging.getLogger("watermaster")


class Signals:
    """SIGTERM and SIGINT as events: the first, the second; a third does what it does by default.

    SIGHUP, a terminal that is closed, is a first one however often it comes; none under nohup.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._arrived)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._loop.add_signal_handler(signal.SIGHUP, self.first.set)

    def _arrived(self) -> None:
        if not self.first.is_set():
            self.first.set()
            return
        self.second.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)


async def until_over(
    engines: Iterable[Engine], signals: Signals, announce: Callable[[], None]
) -> int:
    """Wait for a signal (returns 0) or for an engine to fail for good (returns 1)."""
    failures = [asyncio.create_task(engine.failed()) for engine in engines]
    signalled = asyncio.create_task(signals.first.wait())
    ready = asyncio.create_task(_all_ready(engines))
    try:
        ends = {*failures, signalled}
        await asyncio.wait({*ends, ready}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and ready.exception() is None:
            announce()
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if signals.first.is_set():
            return 0
        await asyncio.wait(failures, return_when=asyncio.FIRST_COMPLETED)
        reasons = "; ".join(task.result() for task in failures if task.done())
        logger.error("the engine is beyond recovery, so the server ends: %s", reasons)
        return 1
    finally:
        for task in (*failures, signalled, ready):
            task.cancel()


async def _all_ready(engines: Iterable[Engine]) -> None:
    for engine in engines:
        await engine.ready()


async def _stop(engines: Iterable[Engine], grace: float) -> None:
    async with asyncio.TaskGroup() as group:
        for engine in engines:
            group.create_task(engine.stop(grace))


async def drain(engines: Iterable[Engine], signals: Signals, grace: float) -> None:
    """Stop the engines; a second signal cuts the grace period short."""
    logger.info("draining: no new work, and running work ends within %g s", grace)
    stopping = asyncio.create_task(_stop(engines, grace))
    cut = asyncio.create_task(signals.second.wait())
    await asyncio.wait({stopping, cut}, return_when=asyncio.FIRST_COMPLETED)
    cut.cancel()
    if stopping.done():
        stopping.result()
        return
    logger.warning("told to stop again: ending what still runs")
    stopping.cancel()
    await _stop(engines, 0)
