"""The gateway's own cost: its whole path over a simulated model, beside a bare endpoint.

Both are processes on the same uvicorn, uvloop and httptools, and are called by the same client, in
turns. The whole path is what a request to `/v1/chat/completions` goes through: key, limits, schema,
tokenising, engine thread, scheduler, ledger, events, and the answer; only the model takes no time.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx

from loadgen.http_load import NUMBER, Load
from loadgen.limits import Finding, between
from loadgen.server import Server, serving

CONFIG = """
[model]
device = "simulated"
[telemetry]
exporter = "otlp"
endpoint = "http://127.0.0.1:{port}/v1/traces"
"""
# One of each kind, and none that is ever reached.
LIMITS = (
    "--requests-per-minute=100000000",
    "--tokens-per-minute=100000000000",
    "--concurrency=500",
    "--tokens-per-day=1000000000000",
    "--money-per-month=1000000",
)
PROMPT = f"Say in one sentence what a watermaster did for field {NUMBER} of a village."
STREAMED = 256  # tokens of a stream
MANY = 64  # clients
RATE_LIMIT = 40.0  # percent of the bare rate
TRACED_LIMIT = 20.0  # the same with every request traced
TAIL_LIMIT = 5.0  # milliseconds added to p99 with many clients
TOKEN_LIMIT = 25.0  # microseconds added to a streamed token

Report = Callable[[str], None]
Rows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes, and what it says; `pid` is the server's process."""

    pid: int
    port: int
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    def load(self, clients: int, seconds: float) -> Load:
        """Call in a closed loop, from a process of its own."""
        before = cpu_seconds(self.pid)
        order = {
            "port": self.port,
            "path": self.path,
            "headers": {"content-type": "application/json", **self.headers},
            "body": json.dumps(self.body),
            "clients": clients,
            "seconds": seconds,
            "warm_up": seconds / 4,
        }
        done = subprocess.run(
            (sys.executable, "-m", "loadgen.http_load"),
            input=json.dumps(order).encode(),
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the load failed: {done.stderr.decode(errors='replace')[-600:]}")
        load = Load(**json.loads(done.stdout))
        return replace(load, cpu=1e6 * (cpu_seconds(self.pid) - before) / load.all_answers)


class Bare(NamedTuple):
    """The bare endpoint's process and port."""

    pid: int
    port: int


def cpu_seconds(pid: int) -> float:
    """What the threads of a process have used so far; nan where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return nan
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Pair:
    """The same load on the bare endpoint and on the gateway, once a repeat."""

    name: str
    clients: int
    bare: list[Load] = field(default_factory=list)
    full: list[Load] = field(default_factory=list)

    def shares(self) -> list[float]:
        """The gateway's rate in percent of the bare one's."""
        both = zip(self.bare, self.full, strict=True)
        return [100 * full.rate / bare.rate for bare, full in both]

    def added_p99(self) -> list[float]:
        """Milliseconds."""
        return [full.p99 - bare.p99 for bare, full in zip(self.bare, self.full, strict=True)]

    def added_to_a_token(self) -> list[float]:
        """Microseconds of the server's time."""
        both = zip(self.bare, self.full, strict=True)
        return [1e6 / STREAMED * (1 / full.rate - 1 / bare.rate) for bare, full in both]


def measure(seconds: float, repeat: int, report: Report) -> list[Pair]:
    """Loads of `seconds` each, `repeat` times: one client, many, many streams, many traced."""
    pairs = [
        Pair("one client", 1),
        Pair(f"{MANY} clients", MANY),
        Pair(f"{MANY} streams of {STREAMED} tokens", MANY),
        Pair(f"{MANY} clients, every request traced", MANY),
    ]
    with bare_server() as bare:
        config = CONFIG.format(port=bare.port)
        report("starting a server without traces")
        with serving(config, {"OTEL_TRACES_SAMPLER": "always_off"}, LIMITS) as server:
            _run(pairs[:3], server, bare, seconds, repeat, report)
        report("starting a server that traces every request")
        with serving(config, {"OTEL_TRACES_SAMPLER": "always_on"}, LIMITS) as server:
            _run(pairs[3:], server, bare, seconds, repeat, report)
    return pairs


def _run(
    pairs: list[Pair], server: Server, bare: Bare, seconds: float, repeat: int, report: Report
) -> None:
    for number in range(1, repeat + 1):
        for pair in pairs:
            report(f"{pair.name}, {number} of {repeat}")
            plain, full = _targets(server, bare, streamed="streams" in pair.name)
            pair.bare.append(plain.load(pair.clients, seconds))
            pair.full.append(full.load(pair.clients, seconds))


def _targets(server: Server, bare: Bare, *, streamed: bool) -> tuple[Target, Target]:
    """The bare endpoint sends what the gateway sent when it was asked."""
    full = Target(
        pid=server.pid,
        port=int(server.url.rpartition(":")[2]),
        path="/v1/chat/completions",
        headers={"authorization": f"Bearer {server.keys['gold']}"},
        body={
            "model": "smollm2-135m",
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": STREAMED if streamed else 1,
            "stream": streamed,
            "ignore_eos": True,
            "temperature": 0,
        },
    )
    url = f"{server.url}{full.path}"
    answer = httpx.post(url, headers=full.headers, json=full.body, timeout=60).raise_for_status()
    if not streamed:
        return Target(*bare, "/json", {}, {**full.body, "answer": answer.json()}), full
    events = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    event = events[len(events) // 2].removeprefix("data: ")
    return Target(*bare, "/sse", {}, {**full.body, "event": event, "times": len(events)}), full


@contextmanager
def bare_server() -> Iterator[Bare]:
    """The bare endpoint as a process."""
    command = (sys.executable, "-m", "loadgen.bare_server")
    server = subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ))
    try:
        assert server.stdout is not None  # it is a pipe
        yield Bare(server.pid, int(server.stdout.readline()))
    finally:
        server.terminate()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


def findings(pairs: list[Pair]) -> list[Finding]:
    """Medians over the repeats, against the limits."""
    one, many, streams, traced = pairs
    return [
        _share(f"rate, {one.name}", one, RATE_LIMIT),
        _share(f"rate, {many.name}", many, RATE_LIMIT),
        _share(f"rate, {traced.name}", traced, TRACED_LIMIT),
        _most(f"added p99, {many.name}", many.added_p99(), TAIL_LIMIT, "ms"),
        _most("added to a streamed token", streams.added_to_a_token(), TOKEN_LIMIT, "us"),
    ]


def _share(name: str, pair: Pair, limit: float) -> Finding:
    shares = pair.shares()
    return Finding(name, median(shares), limit, "% of bare", "least", between(shares))


def _most(name: str, values: list[float], limit: float, unit: str) -> Finding:
    return Finding(name, median(values), limit, unit, note=between(values))


HEADER = ("load", "server", "answers/s", "p50", "p99", "CPU an answer")


def rows(pairs: list[Pair]) -> Rows:
    """Two rows a load, medians over the repeats, for a table under HEADER."""
    return [
        (
            pair.name,
            name,
            f"{median(load.rate for load in loads):,.0f}",
            f"{median(load.p50 for load in loads):.2f} ms",
            f"{median(load.p99 for load in loads):.2f} ms",
            f"{median(load.cpu for load in loads):,.0f} us",
        )
        for pair in pairs
        for name, loads in (("bare", pair.bare), ("gateway", pair.full))
    ]
