"""A store that throws tenants, keys and budgets away when it is full is warned of."""

import logging

import pytest

from gateway.store_access import connected
from telemetry.clock import SystemClock
from tenants.connection import Connection
from tenants.departed import Departed
from tenants.replica import lonely

pytestmark = [pytest.mark.anyio, pytest.mark.server]


@pytest.mark.parametrize(
    ("memory", "policy", "warned"),
    [
        ("100mb", "allkeys-lru", True),
        ("100mb", "volatile-ttl", True),  # budgets and usage have an end
        ("100mb", "noeviction", False),
        ("0", "allkeys-lru", False),  # without a bound it is never full
    ],
)
async def test_a_store_that_throws_records_away_is_warned_of(
    valkey_url: str,
    connection: Connection,
    caplog: pytest.LogCaptureFixture,
    memory: str,
    policy: str,
    warned: bool,
) -> None:
    async def order(**settings: str) -> None:
        for name, value in settings.items():
            key = name.replace("_", "-")
            await connection.call(
                lambda client, key=key, value=value: client.config_set(key, value)
            )

    caplog.set_level(logging.WARNING)
    await order(maxmemory=memory, maxmemory_policy=policy)
    try:
        async with connected(valkey_url, SystemClock(), Departed(lonely()), 30.0):
            pass
    finally:
        await order(maxmemory="0", maxmemory_policy="noeviction")
    assert (f"maxmemory-policy {policy}" in caplog.text) == warned
