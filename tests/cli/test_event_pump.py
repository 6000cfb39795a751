"""Events reach every reader, in order, bounded, whatever one reader does."""

import asyncio
import logging
import threading
from collections.abc import Sequence

import pytest

from gateway.event_pump import EventPump
from telemetry.events import Event, FlowLifted


def event(number: int) -> FlowLifted:
    return FlowLifted(now=number, flow=("gold",), before=0.0, after=1.0)


def test_events_of_another_thread_arrive_in_order() -> None:
    async def scenario() -> tuple[list[int], int]:
        seen: list[int] = []
        done = asyncio.Event()

        def read(events: Sequence[Event]) -> None:
            seen.extend(item.now for item in events)
            if len(seen) == 3000:
                done.set()

        pump = EventPump([read])
        engine = threading.Thread(
            target=lambda: [pump.post([event(n), event(n + 1)]) for n in range(0, 3000, 2)]
        )
        engine.start()
        await asyncio.wait_for(done.wait(), 10)
        engine.join()
        return seen, pump.dropped

    seen, dropped = asyncio.run(scenario())
    assert seen == list(range(3000))
    assert dropped == 0


def test_what_does_not_fit_is_counted_and_room_comes_back() -> None:
    async def scenario() -> None:
        seen: list[int] = []
        pump = EventPump([lambda events: seen.extend(item.now for item in events)], capacity=3)
        pump.post([event(1), event(2)])
        pump.post([event(3), event(4)])
        pump.post([event(5)])
        assert pump.dropped == 2
        pump.flush()
        pump.post([event(6), event(7), event(8)])
        pump.flush()
        assert seen == [1, 2, 5, 6, 7, 8]
        assert pump.dropped == 2

    asyncio.run(scenario())


def test_a_failing_reader_keeps_nothing_from_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> list[int]:
        seen: list[int] = []

        def broken(_: Sequence[Event]) -> None:
            raise RuntimeError("defect")

        pump = EventPump([broken, lambda events: seen.extend(item.now for item in events)])
        pump.post([event(1)])
        pump.post([event(2)])
        pump.flush()
        return seen

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(scenario()) == [1, 2]
    assert [record.message for record in caplog.records] == ["a reader of engine events failed"] * 2
