"""The server, its store or both are killed while callers are served: nothing is lost or doubled.

What callers received, what the engine wrote down, what the store says in the end and what is gone
of the tenants' budgets are four accounts of the same tokens. The model is simulated, so that there
are many of them. `KILL_ROUNDS=20 pytest tests/cli/test_kills.py` goes on for longer.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx
import pytest

from tenants.connection import Connection
from tenants.embedded import EmbeddedValkey
from tenants.ledger.frames import HEADER_BYTES, decode
from tenants.ledger.leftovers import names, path_of
from tenants.ledger.report import Question, answer
from tenants.ledger.usage_store import UsageStore
from tests.cli.test_server import ServerProcess, demo_keys, folder, plain_environment, start

__all__ = ["folder", "start"]  # fixtures

pytestmark = [pytest.mark.server, pytest.mark.model, pytest.mark.timeout(1200)]

ROUNDS = int(os.environ.get("KILL_ROUNDS", "2"))
VICTIMS = (("server", "store"), ("store",), ("server",), ("store", "server"))
MOST_TOKENS = 400
BUDGET = 10**9
COUNTS = ("requests", "prompt_tokens", "output_tokens")


class Caller(threading.Thread):
    """Streams one answer after another until told to stop or the server is gone.

    `complete` sums up the usage of answers that came whole; of those cut short `received` counts
    the pieces of text, of at least one token each, and `asked` the most tokens there may have been.
    """

    def __init__(self, url: str, key: str) -> None:
        super().__init__()
        self._url = url
        self._headers = {"authorization": f"Bearer {key}"}
        self._stop_asked = threading.Event()
        self.complete: Counter[str] = Counter()
        self.received = self.asked = self.cut = 0
        self.start()

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(60)
        assert not self.is_alive()

    def run(self) -> None:
        with httpx.Client(base_url=self._url, headers=self._headers, timeout=60) as client:
            while not self._stop_asked.is_set():
                try:
                    self._stream(client, random.randint(1, MOST_TOKENS))
                except httpx.TransportError:
                    return

    def _stream(self, client: httpx.Client, tokens: int) -> None:
        body = {
            "model": "smollm2-135m",
            "prompt": "Water " * random.randint(1, 60),
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "max_tokens": tokens,
        }
        received, usage = 0, None
        try:
            with client.stream("POST", "/v1/completions", json=body) as response:
                assert response.status_code == 200, response.read()
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        chunk = json.loads(line.removeprefix("data: "))
                        usage = chunk.get("usage") or usage
                        for choice in chunk["choices"]:
                            received += bool(choice["text"])
        finally:
            if usage is not None:
                assert usage["completion_tokens"] == tokens
                self.complete += Counter(
                    requests=1, prompt_tokens=usage["prompt_tokens"], output_tokens=tokens
                )
            elif received:
                self.cut += 1
                self.received += received
                self.asked += tokens


class Expectation:
    """What the ledger must say of a tenant: no less than callers have, no more than they asked."""

    def __init__(self) -> None:
        self.least: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def add(self, caller: Caller) -> None:
        self.least += caller.complete + Counter(
            requests=caller.cut, output_tokens=caller.received, prompt_tokens=caller.cut
        )
        # One that was cut before its first token reached the caller may be written down too.
        self.most += caller.complete + Counter(
            requests=caller.cut + 1,
            output_tokens=caller.asked + MOST_TOKENS,
            prompt_tokens=(caller.cut + 1) * 200,
        )

    def check(self, found: Counter[str]) -> None:
        for name in COUNTS:
            assert self.least[name] <= found[name] <= self.most[name], (name, found)


def written_down(folder: Path) -> dict[str, Counter[str]]:
    """By tenant, with no server running: what is in the store, and what is on the disk alone."""
    store = EmbeddedValkey(folder / ".watermaster")
    url = store.start()

    async def read() -> dict[str, Counter[str]]:
        connection = Connection(url)
        await connection.reach(10)
        usage = UsageStore(connection, 93)
        sums: dict[str, Counter[str]] = {"gold": Counter(), "bronze": Counter()}
        now = int(time.time())
        for line in await answer(usage, Question(now - 86_400, now + 1, by=("tenant",)), 10):
            sums[line.group["tenant"]] += _counts(line.usage)
        journals = folder / ".watermaster/usage"
        for file_id in names(journals):
            at = HEADER_BYTES + await usage.position(file_id)
            for frame in decode(path_of(journals, file_id).read_bytes()[at:]).frames:
                for account, used in frame.used.items():
                    sums[account.tenant] += _counts(used)
        await connection.close()
        return sums

    try:
        return asyncio.run(read())
    finally:
        store.stop()


def _counts(usage: object) -> Counter[str]:
    return Counter({name: getattr(usage, name) for name in COUNTS})


def told(url: str, keys: dict[str, str]) -> dict[str, Counter[str]]:
    """By tenant: what the server says of it, once its store is there."""
    sums = {}
    for tenant, key in keys.items():
        end = time.monotonic() + 30
        headers = {"authorization": f"Bearer {key}"}
        while (response := httpx.get(f"{url}/v1/usage?by=", headers=headers)).status_code == 503:
            assert time.monotonic() < end
            time.sleep(0.1)
        lines = response.json()["data"]
        sums[tenant] = Counter({name: lines[0][name] for name in COUNTS} if lines else {})
    return sums


def give_budgets(folder: Path, tenants: Iterable[str]) -> None:
    for tenant in tenants:
        command = [
            sys.executable,
            "-c",
            "from gateway.cli import main; main()",
            "tenants",
            "update",
        ]
        options = [tenant, f"--tokens-per-month={BUDGET}", "--concurrency=2"]
        environment = plain_environment()
        subprocess.run(
            [*command, *options], cwd=folder, env=environment, check=True, capture_output=True
        )


def wait_until_settled(url: str, key: str, used: Counter[str]) -> None:
    """Until exactly what was `used` is gone of the budget, and every place is free again."""
    tokens = used["prompt_tokens"] + used["output_tokens"]
    expected = {"tokens_per_month": BUDGET - tokens, "concurrency": 2}

    def left() -> dict[str, int]:
        headers = {"authorization": f"Bearer {key}"}
        limits = httpx.get(f"{url}/v1/backpressure", headers=headers).json()["limits"]
        return {one["limit"]: one["remaining"] for one in limits}

    end = time.monotonic() + 30
    while left() != expected:
        assert time.monotonic() < end, (left(), expected)
        time.sleep(0.1)


def kill(victim: str, server: ServerProcess, folder: Path) -> None:
    if victim == "server":
        server.process.kill()
    else:
        os.kill(int((folder / ".watermaster/valkey.pid").read_text()), signal.SIGKILL)


def test_accounts_agree_after_every_kill(folder: Path, start: Callable[..., ServerProcess]) -> None:
    keys = demo_keys(folder)
    give_budgets(folder, keys)
    expected = {tenant: Expectation() for tenant in keys}
    server, received = None, 0
    for number in range(ROUNDS):
        if server is None:
            server = start(WATERMASTER_MODEL_DEVICE="simulated")
        url = server.url()
        callers = {tenant: [Caller(url, key) for _ in range(2)] for tenant, key in keys.items()}
        time.sleep(random.uniform(0.3, 1.5))
        victims = VICTIMS[number % len(VICTIMS)]
        for victim in victims:
            kill(victim, server, folder)
        if "server" not in victims:
            time.sleep(1.0)  # served all the while
        for tenant in keys:
            for caller in callers[tenant]:
                caller.finish()
                expected[tenant].add(caller)
                received += caller.complete["output_tokens"] + caller.received
        if "server" in victims:
            server.wait()
            before = written_down(folder)
            server = start(WATERMASTER_MODEL_DEVICE="simulated")
            assert told(server.url(), keys) == before
        found = told(server.url(), keys)
        for tenant, expectation in expected.items():
            expectation.check(found[tenant])
            wait_until_settled(server.url(), keys[tenant], found[tenant])
    print(f"{ROUNDS} rounds, {received} tokens and pieces received; the ledger: {found}")
    assert server is not None
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0, server.log.read_text()
    assert names(folder / ".watermaster/usage") == []
    assert written_down(folder) == found
