"""`watermaster usage` on a ledger in a real store."""

import asyncio
import csv
import io
import time
from pathlib import Path

from telemetry.clock import SystemClock
from telemetry.usage import Account, Usage
from tenants.connection import Connection
from tenants.embedded import EmbeddedValkey
from tenants.ledger.journal import Journal
from tenants.ledger.leftovers import Slot, Source, Stretch
from tenants.ledger.usage_store import UsageStore
from tenants.prices import Price
from tests.cli.conftest import Run, parsed


def fill(folder: Path) -> int:
    """Usage of two tenants in this hour, which is returned."""
    hour = int(time.time()) // 3600
    store = EmbeddedValkey(folder / ".watermaster")
    sums = {
        Slot("gold", "0123456789ab", hour): Usage(
            requests=2, prompt_tokens=30, output_tokens=7, device_ns=1_500_000_000
        ),
        Slot("bronze", "ba9876543210", hour): Usage(requests=1, output_tokens=1),
    }

    async def add() -> None:
        connection = Connection(store.start())
        usage = UsageStore(connection, 90)
        source = Source(-1, "file", "sim", "", 1)
        await usage.add(source, 0, Stretch(1, sums), Price(prompt=2.0, output=1e6))
        await connection.close()

    asyncio.run(add())
    store.stop()
    return hour


def test_usage_of_everybody_as_a_table_json_and_csv(run: Run, tmp_path: Path) -> None:
    fill(tmp_path)
    bronze, gold = parsed(run("usage", "--json"))
    assert (bronze["tenant"], gold["tenant"]) == ("bronze", "gold")
    assert gold == {
        "tenant": "gold",
        "key": "0123456789ab",
        "model": "sim",
        "requests": 2,
        "prompt_tokens": 30,
        "cached_tokens": 0,
        "output_tokens": 7,
        "aborted_tokens": 0,
        "recomputed_tokens": 0,
        "rework_tokens": 0,
        "device_seconds": 1.5,
        "money": 7.00006,
    }
    header, *rows = run("usage").stdout.splitlines()
    assert header.split()[:4] == ["TENANT", "KEY", "MODEL", "REQUESTS"]
    assert [row.split()[0] for row in rows] == ["bronze", "gold"]
    (total,) = csv.DictReader(io.StringIO(run("usage", "--csv", "--by", "").stdout))
    assert (total["requests"], total["output_tokens"]) == ("3", "8")


def test_filters_and_groups(run: Run, tmp_path: Path) -> None:
    hour = fill(tmp_path)
    (line,) = parsed(run("usage", "--json", "--tenant", "gold", "--by", "hour"))
    assert line["hour"] == time.strftime("%Y-%m-%dT%H:00:00Z", time.gmtime(hour * 3600))
    (line,) = parsed(run("usage", "--json", "--key", "ba9876543210", "--by", "day,tenant"))
    assert (line["tenant"], line["day"]) == ("bronze", time.strftime("%Y-%m-%d", time.gmtime()))
    assert parsed(run("usage", "--json", "--model", "another")) == []
    assert parsed(run("usage", "--json", "--to", str(hour * 3600 - 1))) == []
    assert parsed(run("usage", "--json", "--from", str(hour * 3600 + 1), "--by", ""))


def test_what_a_killed_server_left_behind_is_mentioned(run: Run, tmp_path: Path) -> None:
    journal = Journal(tmp_path / ".watermaster/usage", "sim", SystemClock())
    journal.append({Account("gold", "0123456789ab"): Usage(output_tokens=1)})
    assert "bytes of usage" not in run("usage").output  # a server is at it
    journal.close()
    assert "136 bytes of usage are not in it" in run("usage").output


def test_what_makes_no_sense_is_wrong_usage(run: Run) -> None:
    assert "'by' may name" in run("usage", "--by", "colour", code=2).output
    assert "'from' must be a date" in run("usage", "--from", "soon", code=2).output
    assert "contradict" in run("usage", "--csv", "--json", code=2).output
