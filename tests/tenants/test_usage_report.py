"""Reports over many tenants: right, and read in few round trips however many there are."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import pytest

from telemetry.usage import Usage
from tenants.connection import Connection, RecordDamaged
from tenants.ledger.leftovers import Slot, Source, Stretch
from tenants.ledger.report import Question, answer
from tenants.ledger.usage_store import UsageStore
from tenants.prices import FREE

pytestmark = pytest.mark.anyio

TENANTS = [f"t{number:04d}" for number in range(1, 451)]
HOUR = 1_100_000  # far enough ahead that nothing is too old to keep
LAST_HOURS = Question((HOUR - 2) * 3600, (HOUR + 1) * 3600, by=("tenant", "key"))

T = TypeVar("T")


class Counting(Connection):
    """Counts its round trips."""

    trips = 0

    async def call(self, operation: Callable[[Any], Awaitable[T]]) -> T:
        self.trips += 1
        return await super().call(operation)


@pytest.fixture
async def counting(valkey_url: str, connection: Connection) -> AsyncIterator[Counting]:
    counting = Counting(valkey_url)
    yield counting
    await counting.close()


async def used(store: UsageStore, hour: int, tenants: list[str]) -> None:
    """Tenant number i used i tokens in that hour, by a key of its own."""
    amounts = {Slot(t, f"key-{t}", hour): Usage(output_tokens=int(t[1:])) for t in tenants}
    await store.add(Source(-1, f"of-{hour}", "sim", "", 1), 0, Stretch(1, amounts), FREE)


async def test_a_report_on_all_tenants_takes_few_round_trips(counting: Counting) -> None:
    store = UsageStore(counting, 90)
    for hour in range(HOUR - 2, HOUR + 1):
        await used(store, hour, TENANTS)
    counting.trips = 0
    lines = await answer(store, LAST_HOURS, 1000)
    told = [(*line.group.values(), line.usage.output_tokens) for line in lines]
    assert told == [(name, f"key-{name}", 3 * number) for number, name in enumerate(TENANTS, 1)]
    assert counting.trips <= 15


async def test_tenants_who_used_nothing_in_the_hours_asked_for_cost_no_round_trip(
    counting: Counting,
) -> None:
    store = UsageStore(counting, 90)
    await used(store, HOUR - 1000, TENANTS)
    await used(store, HOUR, TENANTS[6:8])
    counting.trips = 0
    lines = await answer(store, LAST_HOURS, 1000)
    assert [line.usage.output_tokens for line in lines] == [7, 8]
    assert counting.trips <= 3


async def test_an_hour_that_is_damaged_among_many_is_named(counting: Counting) -> None:
    store = UsageStore(counting, 90)
    await used(store, HOUR, TENANTS)
    await counting.call(lambda client: client.set(f"wm:usage:t0300:{HOUR}", "no hash"))
    with pytest.raises(RecordDamaged, match=rf"wm:usage:t0300:{HOUR} is damaged"):
        await answer(store, LAST_HOURS, 1000)
    await counting.call(lambda client: client.delete(f"wm:usage:t0300:{HOUR}"))
    await counting.call(lambda client: client.set("wm:usage-hours:t0301", "no sorted set"))
    with pytest.raises(RecordDamaged):
        await answer(store, LAST_HOURS, 1000)
