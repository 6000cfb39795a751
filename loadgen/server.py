"""A whole server as a process of its own, for benches that need one."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

START_SECONDS = 120.0
STOP_SECONDS = 60.0
COMMAND = (sys.executable, "-m", "gateway.cli")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; `keys` are those of the demo tenants, by tenant."""

    url: str
    keys: dict[str, str]
    pid: int


@contextmanager
def serving(
    config: str, variables: Mapping[str, str] | None = None, limits: Sequence[str] = ()
) -> Iterator[Server]:
    """Start `watermaster serve` on a free port with the demo tenants; stop it afterwards.

    `config` is TOML without [store] and the port; `variables` go into its environment; `limits` are
    options of `watermaster tenants update` for gold. Raises RuntimeError with the server's last
    words if it does not become ready.
    """
    with TemporaryDirectory(prefix="watermaster-bench-") as folder:
        file, log = Path(folder, "watermaster.toml"), Path(folder, "server.log")
        file.write_text(f'{config}\n[store]\ndata_dir = "{folder}/data"\n')
        environment = {k: v for k, v in os.environ.items() if not k.startswith("WATERMASTER_")}
        environment |= variables or {}
        with log.open("wb") as output:
            server = subprocess.Popen(
                (*COMMAND, "serve", "--config", str(file), "--port", "0"),
                env=environment,
                stderr=output,
            )
        try:
            url = _wait_until_ready(server, log)
            demo = subprocess.run(
                (*COMMAND, "demo", "--config", str(file), "--json"),
                env=environment,
                stdout=subprocess.PIPE,
                check=True,
            )
            if limits:
                command = (*COMMAND, "tenants", "update", "gold", *limits, "--config", str(file))
                subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
            yield Server(url, _keys(Path(json.loads(demo.stdout)["file"])), server.pid)
        finally:
            server.terminate()
            server.wait(STOP_SECONDS)


def _wait_until_ready(server: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < end:
        found = re.search(r"ready on (http://\S+)", log.read_text(errors="replace"))
        if found and httpx.get(f"{found[1]}/ready").status_code == 200:
            return found[1]
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


def _keys(file: Path) -> dict[str, str]:
    found = re.findall(r"export WM_(\w+)_KEY=(\S+)", file.read_text())
    return {name.lower(): key for name, key in found}
