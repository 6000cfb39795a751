"""The real server as a process: start, answer, be killed, come back, drain."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tenants.embedded import EmbeddedValkey

pytestmark = [pytest.mark.server, pytest.mark.model]

READY_SECONDS = 60.0
LONG = {"max_tokens": 4000, "ignore_eos": True}


def plain_environment() -> dict[str, str]:
    """Without the developer's own settings."""
    return {name: v for name, v in os.environ.items() if not name.startswith("WATERMASTER_")}


class ServerProcess:
    """`watermaster serve` in `folder`, on a port that the system picks.

    `files`: how many it may have open.
    """

    def __init__(
        self, folder: Path, model: Path, files: int | None = None, **variables: str
    ) -> None:
        self.log = folder / "server.log"
        environment = plain_environment() | {
            "WATERMASTER_MODEL_SOURCE": str(model),
            "WATERMASTER_SERVER_PORT": "0",
            "WATERMASTER_KERNEL_KV_MEMORY": str(256 << 20),
            "WATERMASTER_LOG_FORMAT": "json",
            "WATERMASTER_MODEL_THREADS": "1",  # several suffer when other processes are busy
            **variables,
        }
        bound = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))" if files else ""
        # whoever runs the tests under nohup has it ignored, and so would the server
        heard = "signal.signal(signal.SIGHUP, signal.SIG_DFL)"
        begin = f"import resource, signal; {heard}; {bound}\nfrom gateway.cli import main; main()"
        self._command = [sys.executable, "-c", begin]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._command, "serve"],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def entries(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def url(self) -> str:
        """Where it serves, once `/ready` answers."""
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()
            found = re.search(r"ready on (http://[0-9.:]+)", self.log.read_text())
            if found:
                assert httpx.get(found[1] + "/ready").status_code == 200
                return found[1]
            time.sleep(0.05)
        raise AssertionError(f"not ready within {READY_SECONDS} s:\n{self.log.read_text()}")

    def wait(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def folder(tmp_path: Path, model_path: Path) -> Iterator[Path]:
    yield tmp_path
    leftover = EmbeddedValkey(tmp_path / ".watermaster")
    leftover.start()
    leftover.stop()


@pytest.fixture
def start(folder: Path, model_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    started: list[ServerProcess] = []

    def call(files: int | None = None, **variables: str) -> ServerProcess:
        started.append(ServerProcess(folder, model_path, files, **variables))
        return started[-1]

    yield call
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


def demo_keys(folder: Path) -> dict[str, str]:
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "demo"]
    subprocess.run(command, cwd=folder, env=plain_environment(), check=True, capture_output=True)
    text = (folder / ".watermaster/demo.env").read_text()
    return {tenant.lower(): key for tenant, key in re.findall(r"WM_(GOLD|BRONZE)_KEY=(\S+)", text)}


class Stream(threading.Thread):
    """One streamed call, read to its end in a thread; `lines` are the data of its events."""

    def __init__(self, url: str, key: str, **body: object) -> None:
        super().__init__()
        self._url, self._headers = url, {"authorization": f"Bearer {key}"}
        self._body = {"model": "smollm2-135m", "prompt": "Water", "stream": True, **body}
        self.lines: list[str] = []
        self.started = threading.Event()
        self.start()
        assert self.started.wait(30), "no token came"

    def run(self) -> None:
        with httpx.stream(
            "POST",
            f"{self._url}/v1/completions",
            json=self._body,
            headers=self._headers,
            timeout=60,
        ) as response:
            try:
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        self.lines.append(line.removeprefix("data: "))
                        self.started.set()
            except httpx.RemoteProtocolError:
                self.lines.append("cut")


def complete(url: str, key: str) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/completions",
        json={"model": "smollm2-135m", "prompt": "Water", "max_tokens": 2},
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
    )


def test_killed_found_again_and_drained(folder: Path, start: Callable[..., ServerProcess]) -> None:
    key = demo_keys(folder)["gold"]
    first = start()
    cut = Stream(first.url(), key, **LONG)
    first.process.kill()
    first.wait()
    cut.join()
    assert cut.lines[-1] == "cut"

    second = start(WATERMASTER_SERVER_DRAIN_GRACE="600")
    url = second.url()
    assert complete(url, key).status_code == 200  # the key lives in the store found again
    metrics = httpx.get(url + "/metrics").text
    assert "watermaster_sequences_total{" in metrics
    endless = Stream(url, key, **LONG)
    short = Stream(url, key, max_tokens=40, ignore_eos=True)

    second.process.send_signal(signal.SIGTERM)
    while httpx.get(url + "/ready").status_code == 200:
        time.sleep(0.01)
    refused = complete(url, key)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert int(refused.headers["retry-after"]) >= 1

    short.join()
    assert short.lines[-1] == "[DONE]"
    assert endless.is_alive()

    second.process.send_signal(signal.SIGTERM)  # enough waited
    assert second.wait() == 0, second.log.read_text()
    endless.join()
    assert json.loads(endless.lines[-1])["error"]["code"] == "shutting_down"
    assert [entry["message"] for entry in second.entries()][-1] == "stopped"
    assert key.rpartition("-")[2] not in second.log.read_text()


def test_a_terminal_that_is_closed_ends_the_server_in_order(
    folder: Path, start: Callable[..., ServerProcess]
) -> None:
    server = start(WATERMASTER_MODEL_DEVICE="simulated")
    server.url()
    store = folder / ".watermaster/valkey.pid"
    assert store.exists()
    for _ in range(2):  # from the kernel and from the shell
        server.process.send_signal(signal.SIGHUP)
    assert server.wait() == 0, server.log.read_text()
    assert [entry["message"] for entry in server.entries()][-1] == "stopped"
    assert not store.exists()


def test_an_embedded_store_that_dies_is_started_again(
    folder: Path, start: Callable[..., ServerProcess]
) -> None:
    keys = demo_keys(folder)
    server = start()
    url = server.url()
    assert complete(url, keys["gold"]).status_code == 200
    os.kill(int((folder / ".watermaster/valkey.pid").read_text()), signal.SIGKILL)
    unseen = complete(url, keys["bronze"])  # nobody can say whether this key is good
    assert (unseen.status_code, unseen.json()["error"]["code"]) == (503, "store_unavailable")
    assert complete(url, keys["gold"]).status_code == 200  # a key seen lately works meanwhile
    end = time.monotonic() + 30
    while complete(url, keys["bronze"]).status_code != 200:
        assert time.monotonic() < end, server.log.read_text()
        time.sleep(0.2)


def test_only_a_connection_that_is_idle_for_long_is_closed(
    folder: Path, start: Callable[..., ServerProcess]
) -> None:
    key = demo_keys(folder)["gold"]
    server = start(WATERMASTER_SERVER_IDLE_TIMEOUT="1")
    url = httpx.URL(server.url())
    busy = Stream(str(url), key, **LONG)
    with socket.create_connection((url.host, url.port)) as idle:
        idle.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        idle.settimeout(20)
        assert idle.recv(65536).startswith(b"HTTP/1.1 200")
        while idle.recv(65536):  # the end of it
            pass
    read = len(busy.lines)
    while len(busy.lines) == read:
        assert busy.is_alive()
        time.sleep(0.01)


def test_connections_leave_files_for_the_store_and_the_journal(
    start: Callable[..., ServerProcess],
) -> None:
    server = start(files=300, WATERMASTER_MODEL_DEVICE="simulated")
    url = httpx.URL(server.url())
    with ExitStack() as stack:
        for _ in range(150):
            stack.enter_context(socket.create_connection((url.host, url.port)))
        with socket.create_connection((url.host, url.port)) as further:
            further.settimeout(20)
            assert further.recv(65536).startswith(b"HTTP/1.1 503 ")
    warning = next(entry for entry in server.entries() if entry["level"] == "warning")
    assert "150 connections" in warning["message"]


def test_what_outlives_the_grace_period_ends_with_an_error(
    folder: Path, start: Callable[..., ServerProcess]
) -> None:
    key = demo_keys(folder)["gold"]
    server = start(WATERMASTER_SERVER_DRAIN_GRACE="0.2")
    endless = Stream(server.url(), key, **LONG)
    server.process.send_signal(signal.SIGINT)
    assert server.wait() == 0
    endless.join()
    assert json.loads(endless.lines[-1])["error"]["code"] == "shutting_down"


def test_an_engine_beyond_recovery_ends_the_process(
    folder: Path, start: Callable[..., ServerProcess], model_path: Path
) -> None:
    """The files pass the first look; that no memory holds such a context shows in the engine."""
    broken = folder / "broken"
    broken.mkdir()
    for file in model_path.iterdir():
        (broken / file.name).symlink_to(file)
    (broken / "config.json").unlink()
    config = json.loads((model_path / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 10**12}))
    server = start(WATERMASTER_MODEL_SOURCE=str(broken))
    assert server.wait() == 1
    assert "beyond recovery" in server.log.read_text()
    shutil.rmtree(broken)


@pytest.mark.parametrize(
    ("variables", "code", "sentence"),
    [
        ({"WATERMASTER_MODEL_SOURCE": "./nothing"}, 3, "neither a known model"),
        ({"WATERMASTER_REDIS_URL": "redis://127.0.0.1:1/0"}, 4, "the store does not answer"),
        ({"WATERMASTER_SERVER_PORT": "-1"}, 2, "server.port must be greater than or equal to 0"),
    ],
)
def test_what_keeps_it_from_starting_is_one_sentence(
    start: Callable[..., ServerProcess], variables: dict[str, str], code: int, sentence: str
) -> None:
    server = start(**variables)
    assert server.wait() == code
    last = server.log.read_text().splitlines()[-1]
    assert last.startswith("error: ")
    assert sentence in last
    assert "Traceback" not in server.log.read_text()
