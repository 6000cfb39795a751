"""Journals on a real disk into a real store: everything arrives, and nothing twice."""

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.clock import Clock, SystemClock, VirtualClock
from telemetry.units import SECOND
from telemetry.usage import Account, Usage
from tenants.connection import Connection, RecordDamaged, StoreError, StoreUnavailable
from tenants.embedded import EmbeddedValkey
from tenants.ledger.frames import HEADER_BYTES, encode
from tenants.ledger.journal import SUFFIX, Journal
from tenants.ledger.ledger import Ledger, LedgerConfig
from tenants.ledger.leftovers import Slot, Source, Stretch, names, path_of
from tenants.ledger.report import Question, TooManyLinesError, answer
from tenants.ledger.usage_store import UsageStore
from tenants.prices import FREE, Price

pytestmark = pytest.mark.anyio

GOLD = Account("gold", "0123456789ab")
BRONZE = Account("bronze", "ba9876543210")
CLOCK = SystemClock()
NOW = CLOCK.wall() // SECOND
EVER = Question(NOW - 86_400, NOW + 86_400, by=("tenant",))


def ledger(folder: Path, store: Connection, clock: Clock = CLOCK, **config) -> Ledger:
    return Ledger(LedgerConfig(folder, **config), UsageStore(store, 90), clock)


def source(file_id: str, model: str = "sim") -> Source:
    return Source(-1, file_id, model, "", 1)


async def totals(store: Connection, question: Question = EVER) -> dict[str, Usage]:
    lines = await answer(UsageStore(store, 90), question, 100)
    return {line.group["tenant"]: line.usage for line in lines}


async def test_usage_is_in_the_store_after_a_flush_and_again_after_another(
    connection: Connection, tmp_path: Path
) -> None:
    book = ledger(tmp_path, connection)
    journal = book.journal("sim", Price(prompt=1.0, cached=0.5, output=2.0))
    journal.append({GOLD: Usage(requests=1, prompt_tokens=10, cached_tokens=4, output_tokens=1)})
    journal.append({GOLD: Usage(output_tokens=1), BRONZE: Usage(output_tokens=7, device_ns=5)})
    assert book.pending_bytes > 0
    for _ in range(2):
        await book.flush()
        used = await totals(connection)
        assert used["gold"] == Usage(1, 10, 4, 2)
        assert used["bronze"] == Usage(output_tokens=7, device_ns=5)
    assert (book.pending_bytes, book.lag_seconds) == (0, 0.0)
    journal.append({GOLD: Usage(output_tokens=1)})
    await book.flush()
    (gold,) = await answer(book.store, Question(EVER.begin, EVER.end, tenant="gold", by=()), 1)
    assert gold.usage.output_tokens == 3
    assert gold.money_nanos == 6 * 1000 + 4 * 500 + 3 * 2000


async def test_a_file_that_has_grown_long_is_followed_by_another_and_goes_away_when_added(
    connection: Connection, tmp_path: Path
) -> None:
    book = ledger(tmp_path, connection, file_bytes=2000)
    journal = book.journal("sim", FREE)
    for _ in range(100):
        journal.append({GOLD: Usage(output_tokens=1)})
    assert len(names(tmp_path)) > 10
    await book.flush()
    assert (await totals(connection))["gold"].output_tokens == 100
    live = [journal.live[0]] if journal.live else []
    assert names(tmp_path) == live
    fences = await connection.call(lambda client: client.keys("wm:usage-file:*"))
    assert len(fences) == len(live)


def writer(folder: Path) -> subprocess.Popen[str]:
    """Writes a token a step for ever; a line says that it was handed out."""
    script = (
        "import sys; from pathlib import Path\n"
        "from telemetry.clock import SystemClock; from telemetry.usage import Account, Usage\n"
        "from tenants.ledger.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]), 'sim', SystemClock())\n"
        "while True:\n"
        "    journal.append({Account('gold', '0123456789ab'): Usage(output_tokens=1)})\n"
        "    print(flush=True)\n"
    )
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_what_a_killed_process_left_behind_is_added_by_the_next_one(
    connection: Connection, tmp_path: Path
) -> None:
    process = writer(tmp_path)
    for _ in range(500):
        process.stdout.readline()
    book = ledger(tmp_path, connection)
    await book.flush()  # the file is still being written, so it is not ours to take
    assert await totals(connection) == {}
    process.send_signal(signal.SIGKILL)
    handed_out = 500 + process.communicate()[0].count("\n")
    await book.flush()
    written = (await totals(connection))["gold"].output_tokens
    assert handed_out <= written <= handed_out + 1
    assert names(tmp_path) == []


async def test_servers_that_share_a_folder_add_what_is_left_behind_once(
    connection: Connection, tmp_path: Path
) -> None:
    for _ in range(20):
        journal = Journal(tmp_path, "sim", CLOCK)
        for _ in range(10):
            journal.append({GOLD: Usage(output_tokens=1)})
        journal.close()
    servers = [ledger(tmp_path, connection) for _ in range(4)]
    await asyncio.gather(*(server.flush() for server in servers))
    assert (await totals(connection))["gold"].output_tokens == 200
    assert names(tmp_path) == []
    assert [server.pending_bytes for server in servers] == [0] * 4


async def test_a_torn_end_is_dropped_and_a_spoilt_middle_is_skipped(
    connection: Connection, tmp_path: Path
) -> None:
    journal = Journal(tmp_path, "sim", CLOCK)
    for _ in range(3):
        journal.append({GOLD: Usage(output_tokens=1)})
    (file_id,) = names(tmp_path)
    journal.close()
    path = path_of(tmp_path, file_id)
    data = bytearray(path.read_bytes()) + encode(NOW // 3600, {GOLD: Usage(output_tokens=1)})[:-3]
    data[-300] ^= 1  # in the second of the three
    path.write_bytes(data)
    await ledger(tmp_path, connection).flush()
    assert (await totals(connection))["gold"].output_tokens == 2
    assert names(tmp_path) == []


async def test_no_journal_and_one_killed_before_its_header_are_put_away(
    connection: Connection, tmp_path: Path
) -> None:
    (tmp_path / f"{'0' * 16}{SUFFIX}").write_bytes(b"")
    (tmp_path / f"{'1' * 16}{SUFFIX}").write_bytes(b"something else" * 100)
    await ledger(tmp_path, connection).flush()
    assert os.listdir(tmp_path) == [f"{'1' * 16}.damaged"]


async def test_a_journal_of_another_version_waits_for_it(
    connection: Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newer = tmp_path / f"{'2' * 16}{SUFFIX}"
    newer.write_bytes(b"watermaster-us-2" + bytes(HEADER_BYTES))
    for _ in range(3):
        await ledger(tmp_path, connection).flush()
    assert os.listdir(tmp_path) == [newer.name]
    assert caplog.text.count("another version of Watermaster wrote it") == 1


@pytest.mark.parametrize("damage", ["a number", "its type"])
async def test_no_report_is_made_of_an_hour_that_cannot_be_read(
    connection: Connection, damage: str
) -> None:
    store, hour = UsageStore(connection, 90), NOW // 3600
    sums = {Slot(name, "k", hour): Usage(output_tokens=3) for name in ("bronze", "gold")}
    await store.add(source("file"), 0, Stretch(1, sums), FREE)
    record = f"wm:usage:gold:{hour}"
    await connection.call(lambda client: client.hset(record, "k/sim/tokens_of_tomorrow", "7"))
    assert (await totals(connection))["gold"].output_tokens == 3
    if damage == "a number":
        await connection.call(lambda client: client.hset(record, "k/sim/output_tokens", b"\xff"))
    else:
        await connection.call(lambda client: client.set(record, "text"))
    with pytest.raises(RecordDamaged, match=record):
        await totals(connection)
    own = Question(NOW - 86_400, NOW + 86_400, tenant="bronze", by=("tenant",))
    assert (await totals(connection, own))["bronze"].output_tokens == 3


async def test_what_was_put_aside_is_kept_for_a_while_and_not_in_any_number(
    connection: Connection, tmp_path: Path
) -> None:
    def put_aside() -> set[int]:
        return {int(path.stem) for path in tmp_path.glob("*.damaged")}

    book = ledger(tmp_path, connection)
    for number in range(20):
        path = path_of(tmp_path, f"{number:016}")
        path.write_bytes(b"no journal" * 200)
        os.utime(path, (NOW - 1000 + number, NOW - 1000 + number))
    await book.flush()
    assert put_aside() == set(range(4, 20))
    for number in range(10):
        aside = tmp_path / f"{number + 4:016}.damaged"
        os.utime(aside, (NOW - 31 * 86_400, NOW - 31 * 86_400))
    async with book.running():
        assert put_aside() == set(range(14, 20))


async def test_a_store_that_is_away_costs_only_time(tmp_path: Path) -> None:
    valkey = EmbeddedValkey(tmp_path / "store")
    connection = Connection(valkey.start())
    book = ledger(tmp_path / "usage", connection, interval=0.02, most_bytes=4000, file_bytes=2000)
    journal = book.journal("sim", FREE)
    journal.append({GOLD: Usage(output_tokens=1)})
    await book.flush()
    assert book.describe()["state"] == "stored"
    valkey.stop()
    for _ in range(20):
        journal.append({GOLD: Usage(output_tokens=1)})
    with pytest.raises(StoreUnavailable):
        await book.flush()
    assert (book.describe()["state"], book.full) == ("journaled", False)
    assert book.pending_bytes >= 20 * 136
    assert book.lag_seconds > 0
    for _ in range(20):
        journal.append({GOLD: Usage(output_tokens=1)})
    with pytest.raises(StoreUnavailable):
        await book.flush()
    assert book.full  # 40 frames of 136 bytes wait, and the bound is 4000
    assert b"watermaster_usage_flush_failures_total 2.0" in book.metrics()
    valkey.start()
    async with book.running():
        while book.pending_bytes:  # noqa: ASYNC110 - that nobody has to be told is the point
            await asyncio.sleep(0.01)
    assert (book.describe()["state"], book.full, book.lag_seconds) == ("stored", False, 0.0)
    assert (await totals(connection))["gold"].output_tokens == 41
    await connection.close()
    valkey.stop()


@contextmanager
def files_of_at_most(size: int):
    """A disk that is full, as far as this process's files go."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_disk_that_takes_nothing_is_said_and_nothing_is_lost(
    connection: Connection, tmp_path: Path
) -> None:
    clock = VirtualClock(epoch=CLOCK.wall())
    book = ledger(tmp_path, connection, clock)
    journal = book.journal("sim", FREE)
    journal.append({GOLD: Usage(output_tokens=1)})
    with files_of_at_most(HEADER_BYTES + 136 + 50):  # the second frame is torn in the middle
        journal.append({GOLD: Usage(output_tokens=1)})
        journal.append({GOLD: Usage(output_tokens=1)})
    assert journal.failing
    assert book.full
    assert book.describe()["state"] == "in memory"
    clock.advance(2 * SECOND)
    journal.append({GOLD: Usage(output_tokens=1)})
    assert not journal.failing
    await book.flush()
    assert (await totals(connection))["gold"].output_tokens == 4


async def test_a_disk_that_is_free_again_is_found_without_new_work(
    connection: Connection, tmp_path: Path
) -> None:
    """There is none until it is: calls are refused meanwhile."""
    book = ledger(tmp_path, connection)
    journal = book.journal("sim", FREE)
    with files_of_at_most(HEADER_BYTES + 50):
        journal.append({GOLD: Usage(output_tokens=1)})
        await book.flush()
        assert book.full
    await book.flush()
    assert not book.full
    assert (await totals(connection))["gold"].output_tokens == 1


@pytest.mark.parametrize("freed", [False, True])
async def test_what_waits_in_memory_at_the_end_is_written_down_or_said_to_be_lost(
    connection: Connection, tmp_path: Path, freed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    book = ledger(tmp_path, connection)
    journal = book.journal("sim", FREE)
    with ExitStack() as disk:
        async with book.running():
            disk.enter_context(files_of_at_most(HEADER_BYTES + 50))
            journal.append({GOLD: Usage(output_tokens=1)})
            if freed:
                disk.close()
    assert bool(await totals(connection)) == freed
    assert ("could not be written" in caplog.text) == (not freed)


async def test_a_journal_deleted_while_it_is_written_is_read_all_the_same(
    connection: Connection, tmp_path: Path
) -> None:
    """Another one is begun, in a folder of its own if need be."""
    book = ledger(tmp_path / "usage", connection)
    journal = book.journal("sim", FREE)
    for tokens in (2, 4, 6):
        journal.append({GOLD: Usage(output_tokens=1)})
        shutil.rmtree(tmp_path / "usage")
        journal.append({GOLD: Usage(output_tokens=1)})
        await book.flush()
        assert (await totals(connection))["gold"].output_tokens == tokens
    assert book.describe() == {"state": "stored", "pending_bytes": 0, "lag_seconds": 0.0}


async def test_with_the_store_away_a_deleted_journal_is_said_to_be_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connection = Connection(f"unix://{tmp_path}/nobody")
    book = ledger(tmp_path / "usage", connection)
    journal = book.journal("sim", FREE)
    journal.append({GOLD: Usage(output_tokens=1)})
    with pytest.raises(StoreUnavailable):
        await book.flush()
    assert "is lost" not in caplog.text
    shutil.rmtree(tmp_path / "usage")
    with pytest.raises(StoreUnavailable):
        await book.flush()
    assert "usage of sim is lost: its file was deleted" in caplog.text
    await connection.close()


async def test_hours_beyond_the_retention_are_forgotten_and_stay_so(
    connection: Connection, tmp_path: Path
) -> None:
    store = UsageStore(connection, retention_days=2)
    hour = NOW // 3600
    for age in (0, 30, 60):  # hours
        stretch = Stretch(1, {Slot("gold", "k", hour - age): Usage(output_tokens=1 + age)})
        assert await store.add(source(f"file-{age}"), 0, stretch, FREE) == 1
    everything = Question(0, NOW + 3600, by=("hour",))
    lines = await answer(store, everything, 10)
    assert [line.usage.output_tokens for line in lines] == [31, 1]
    kept = await connection.call(lambda client: client.ttl(f"wm:usage:gold:{hour - 30}"))
    assert 17 * 3600 <= kept <= 19 * 3600
    fence = await connection.call(lambda client: client.ttl("wm:usage-file:file-0"))
    assert fence > 2 * 86_400  # longer than any hour that the file added to


@pytest.mark.parametrize("record", [f"wm:usage:gold:{NOW // 3600}", "wm:usage-hours:gold"])
async def test_a_damaged_record_is_set_aside_and_nothing_is_counted_twice(
    connection: Connection, caplog: pytest.LogCaptureFixture, record: str
) -> None:
    """A script that fails halfway keeps what it wrote: others' usage would grow at each attempt."""
    store, hour = UsageStore(connection, 90), NOW // 3600
    sums = {
        Slot("bronze", "k", hour): Usage(output_tokens=3),
        Slot("gold", "k", hour): Usage(output_tokens=5),
    }
    await connection.call(lambda client: client.set(record, "by hand"))
    assert await store.add(source("file"), 0, Stretch(1, sums), FREE) == 1
    used = await totals(connection)
    assert (used["bronze"].output_tokens, used["gold"].output_tokens) == (3, 5)
    assert await connection.call(lambda client: client.get(f"wm:damaged:{record}")) == "by hand"
    assert f"the record {record} was damaged" in caplog.text


async def test_a_number_that_is_none_is_set_aside_with_its_hour(connection: Connection) -> None:
    store, hour = UsageStore(connection, 90), NOW // 3600
    record, field = f"wm:usage:gold:{hour}", "k/sim/output_tokens"
    await connection.call(lambda client: client.hset(record, field, "many"))
    sums = {
        Slot("bronze", "k", hour): Usage(output_tokens=3),
        Slot("gold", "k", hour): Usage(output_tokens=5),
    }
    assert await store.add(source("file", "sim"), 0, Stretch(1, sums), FREE) == 1
    used = await totals(connection)
    assert (used["bronze"].output_tokens, used["gold"].output_tokens) == (3, 5)
    aside = await connection.call(lambda client: client.hget(f"wm:damaged:{record}", field))
    assert aside == "many"


async def test_questions_filter_and_sum_up(connection: Connection, tmp_path: Path) -> None:
    store = UsageStore(connection, 90)
    hour = NOW // 3600
    for model in ("sim", "org/other:1"):
        sums = {
            Slot("gold", "k1", hour): Usage(output_tokens=1),
            Slot("gold", "k2", hour): Usage(output_tokens=10),
            Slot("gold", "k1", hour - 1): Usage(output_tokens=100),
            Slot("bronze", "k3", hour): Usage(output_tokens=1000),
        }
        await store.add(source(f"of-{model}", model), 0, Stretch(1, sums), FREE)

    async def ask(**changes: object) -> list[int]:
        question = Question(**({"begin": NOW - 7200, "end": NOW + 1, "by": ()} | changes))
        return [line.usage.output_tokens for line in await answer(store, question, 8)]

    assert await ask() == [2 * 1111]
    assert await ask(tenant="gold") == [2 * 111]
    assert await ask(tenant="gold", key="k1", model="org/other:1") == [101]
    assert await ask(begin=hour * 3600 + 5, end=hour * 3600 + 6) == [2 * 1011]  # the hour it is in
    assert await ask(by=("key", "model")) == [101, 101, 10, 10, 1000, 1000]
    assert await ask(by=("tenant", "key", "model", "hour"), tenant="gold") == [
        100,
        1,
        100,
        1,
        10,
        10,
    ]
    assert await ask(tenant="nobody") == []
    with pytest.raises(TooManyLinesError):
        await answer(store, Question(NOW - 7200, NOW + 1, by=("key", "model")), 5)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=8),
)
def test_stretches_in_any_order_and_any_number_of_times_add_up_once(
    valkey_url: str, cuts: list[list[int]], attempts: list[tuple[int, int]]
) -> None:
    """Whatever flushers try, what counts is how far each file has been added."""

    async def play() -> None:
        connection = Connection(valkey_url)
        await connection.call(lambda client: client.flushall())
        store = UsageStore(connection, 90)
        sizes = [size for stretch in cuts for size in stretch]
        ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
        marks = [0, *ends]
        at = 0
        for first, length in [*attempts, *((number, 1) for number in range(len(sizes)))]:
            begin = marks[min(first, len(marks) - 1)]
            end = marks[min(first + length, len(marks) - 1)]
            stretch = Stretch(
                end, {Slot("gold", "k", NOW // 3600): Usage(output_tokens=end - begin)}
            )
            if begin == at:
                at = end
            for _ in range(2):  # the answer was lost, so it is sent again
                assert await store.add(source("file"), begin, stretch, FREE) == at
            assert await store.position("file") == at
        used = await totals(connection)
        assert used["gold"].output_tokens == at
        await connection.close()

    asyncio.run(play())


async def test_a_folder_that_cannot_be_written_is_an_error_at_once(
    connection: Connection, tmp_path: Path
) -> None:
    (tmp_path / "usage").write_text("a file")
    book = ledger(tmp_path / "usage", connection)
    with pytest.raises(StoreError, match="usage cannot be written down"):
        book.journal("sim", FREE)
