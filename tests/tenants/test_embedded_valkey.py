import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenants.connection import Connection
from tenants.embedded import EmbeddedStoreError, EmbeddedValkey
from tenants.model import Tenant
from tenants.store import Store, StoreUnavailable

GATEWAY = """
import signal, sys
from pathlib import Path
from tenants.embedded import EmbeddedValkey
print(EmbeddedValkey(Path(sys.argv[1])).start(), flush=True)
signal.pause()
"""


def create(url: str, name: str) -> None:
    async def run() -> None:
        store = await Store.connect(url)
        await store.create_tenant(Tenant(name))
        await store.close()

    asyncio.run(run())


def names(url: str) -> list[str]:
    async def run() -> list[str]:
        store = await Store.connect(url)
        found = list((await store.list_tenants()).found)
        await store.close()
        return found

    return asyncio.run(run())


def tcp_port(url: str) -> str:
    async def run() -> str:
        connection = Connection(url)
        settings = await connection.call(lambda client: client.config_get("port"))
        await connection.close()
        return str(settings["port"])

    return asyncio.run(run())


def pid_of(folder: Path) -> int:
    return int((folder / "valkey.pid").read_text())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").exists() and ") Z " in Path(f"/proc/{pid}/stat").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a store; whatever server a failed test leaves there is stopped."""
    folder = tmp_path / "store"
    yield folder
    if (folder / "valkey.pid").exists():
        server = EmbeddedValkey(folder)
        server.start()
        server.stop()


def test_a_server_that_refuses_is_there_and_says_why(folder: Path) -> None:
    """Its disk may be full; here it is a replica that serves nothing without its primary."""
    first, second = EmbeddedValkey(folder), EmbeddedValkey(folder)
    url = first.start()

    async def order(*commands: tuple[str, ...]) -> None:
        connection = Connection(url)
        for command in commands:
            await connection.call(lambda client, words=command: client.execute_command(*words))
        await connection.close()

    refuse = ("config", "set", "replica-serve-stale-data", "no")
    asyncio.run(order(refuse, ("replicaof", "127.0.0.1", "1")))
    try:
        assert second.start() == url
        with pytest.raises(StoreUnavailable, match="is down"):
            asyncio.run(Store.connect(url))
    finally:
        asyncio.run(order(("replicaof", "no", "one")))
        second.stop()
        first.stop()


def test_is_private_and_persistent(folder: Path) -> None:
    server = EmbeddedValkey(folder)
    url = server.start()
    socket = folder / "valkey.sock"
    assert url == f"unix://{socket}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert tcp_port(url) == "0"
    create(url, "gold")
    pid = pid_of(folder)
    server.stop()
    assert gone(pid)
    assert not socket.exists()
    again = EmbeddedValkey(folder)
    assert names(again.start()) == ["gold"]
    again.stop()
    again.stop()


def test_outlives_a_killed_gateway_and_is_found_again(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as gateway:
        assert gateway.stdout is not None
        url = gateway.stdout.readline().strip()
        pid = pid_of(folder)
        create(url, "gold")
        os.killpg(gateway.pid, signal.SIGKILL)
    server = EmbeddedValkey(folder)
    assert server.start() == url
    assert pid_of(folder) == pid
    assert names(url) == ["gold"]
    server.stop()
    assert gone(pid)


def test_a_killed_server_starts_again_with_its_data(folder: Path) -> None:
    server = EmbeddedValkey(folder)
    url = server.start()
    create(url, "gold")
    pid = pid_of(folder)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid))
    assert (folder / "valkey.sock").exists(), "the stale socket is the point of this test"
    assert server.start() == url
    assert pid_of(folder) != pid
    assert names(url) == ["gold"]
    server.stop()


def test_two_gateways_starting_at_once_share_one(folder: Path) -> None:
    gateways = [
        subprocess.Popen(
            [sys.executable, "-c", GATEWAY, str(folder)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    urls = set()
    for gateway in gateways:
        assert gateway.stdout is not None
        urls.add(gateway.stdout.readline().strip())
    assert urls == {f"unix://{folder}/valkey.sock"}
    pid = pid_of(folder)
    server = EmbeddedValkey(folder)
    server.start()
    server.stop()
    assert not gone(pid), "others still use it"
    for gateway in gateways:
        gateway.kill()
        gateway.communicate()
    server.start()
    assert pid_of(folder) == pid
    server.stop()
    assert gone(pid), "nobody uses it any more"


def test_a_long_path_gets_a_short_private_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 25)
    server = EmbeddedValkey(folder)
    url = server.start()
    socket = Path(url.removeprefix("unix://"))
    assert len(str(socket)) < 104
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    create(url, "gold")
    other = EmbeddedValkey(folder)
    assert other.start() == url
    assert names(url) == ["gold"]
    other.stop()
    server.stop()
    socket.parent.rmdir()


def test_a_path_with_special_characters_works(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / ("a b%20?#'\"ä" + os.fsdecode(b"\xe4")))  # not UTF-8
    url = server.start()
    create(url, "gold")
    assert names(url) == ["gold"]
    server.stop()


def test_says_what_is_wrong_with_the_data(folder: Path) -> None:
    server = EmbeddedValkey(folder)
    create(server.start(), "gold")
    server.stop()
    manifest = folder / "appendonlydir" / "appendonly.aof.manifest"
    manifest.write_text("nonsense\n")
    with pytest.raises(EmbeddedStoreError, match=r"ended at once: .*valkey\.log") as caught:
        server.start()
    assert "\n" not in str(caught.value)
    (folder / "valkey.pid").unlink()


def test_says_when_the_folder_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedStoreError, match="cannot be used: Not a directory"):
        EmbeddedValkey(tmp_path / "file" / "store").start()


def test_says_when_a_server_does_not_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenants.embedded._START_SECONDS", 0.2)
    monkeypatch.setattr("tenants.embedded._ANSWER_SECONDS", 0.1)
    server = EmbeddedValkey(folder)
    server.start()
    pid = pid_of(folder)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(EmbeddedStoreError, match=f"process {pid}.* does not answer"):
            EmbeddedValkey(folder).start()
        with pytest.raises(EmbeddedStoreError, match="does not answer"):
            server.start()  # as whoever watches it tries
    finally:
        os.kill(pid, signal.SIGCONT)
    server.stop()
    assert not (folder / "valkey.pid").exists(), "it is still the one to stop it"


def test_says_when_there_is_no_binary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EmbeddedStoreError, match="WATERMASTER_REDIS_URL"):
        EmbeddedValkey(folder).start()


def test_the_store_finds_a_restarted_server_again(folder: Path) -> None:
    async def run() -> None:
        server = EmbeddedValkey(folder)
        store = await Store.connect(server.start())
        await store.create_tenant(Tenant("gold"))
        pid = pid_of(folder)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone(pid))
        with pytest.raises(StoreUnavailable):
            await store.get_tenant("gold")
        server.start()
        assert (await store.get_tenant("gold")).id == "gold"
        await store.check()
        await store.close()
        server.stop()

    asyncio.run(run())
