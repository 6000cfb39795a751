"""Two servers as processes on one store: what they let one tenant have, and end, together."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.core.journal_records import Noted
from loadgen.command_log import CommandLogFile
from tenants.embedded import EmbeddedValkey
from tenants.model import Tenant
from tenants.store import Store

pytestmark = [pytest.mark.server, pytest.mark.model]

MODEL = "smollm2-135m"
COMMAND = [sys.executable, "-c", "from gateway.cli import main; main()", "serve"]
LEASE = 3  # seconds
BODY = {"model": MODEL, "prompt": "Water", "max_tokens": 8, "ignore_eos": True}
COMMANDS = "commands.log"  # in a server's folder
SPENT = 9  # tokens of such a call: one of prompt, eight of output


@dataclass
class Replica:
    """One of the servers, with a folder of its own."""

    folder: Path
    environment: dict[str, str]

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.log = self.folder / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                COMMAND, cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )

    def ready(self) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()
            found = re.search(r"ready on (http://[0-9.:]+)", self.log.read_text())
            if found:
                self.url = found[1]
                return
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Pair:
    store_url: str
    replicas: list[Replica]

    def tenant(self, name: str, **settings: object) -> str:
        """A new tenant's key."""

        async def add() -> str:
            store = await Store.connect(self.store_url)
            await store.create_tenant(Tenant(name, **settings))
            key = await store.create_key(name)
            await store.close()
            return key.raw

        return asyncio.run(add())

    def storm(self, key: str, calls: int, **body: object) -> list[httpx.Response]:
        """So many calls at once, in turn to one and the other."""

        async def all_of_them() -> list[httpx.Response]:
            headers = {"authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(headers=headers, timeout=100) as client:
                asked = (
                    client.post(f"{self.replicas[n % 2].url}/v1/completions", json=BODY | body)
                    for n in range(calls)
                )
                return await asyncio.gather(*asked)

        return asyncio.run(all_of_them())

    def ask(self, number: int, key: str, **body: object) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        url = f"{self.replicas[number].url}/v1/completions"
        return httpx.post(url, json=BODY | body, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def pair(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    valkey = EmbeddedValkey(folder / "valkey")
    url = valkey.start()
    plain = {name: v for name, v in os.environ.items() if not name.startswith("WATERMASTER_")}
    environment = plain | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "WATERMASTER_REDIS_URL": url,
        "WATERMASTER_STORE_LEASE": str(LEASE),
        "WATERMASTER_ENGINE_COMMAND_LOG": COMMANDS,
        "WATERMASTER_MODEL_SOURCE": str(model_path),
        "WATERMASTER_MODEL_THREADS": "1",
        "WATERMASTER_SERVER_PORT": "0",
        "WATERMASTER_KERNEL_KV_MEMORY": str(128 << 20),
    }
    replicas = [Replica(folder / name, environment) for name in ("one", "two")]
    for replica in replicas:
        replica.start()
    try:
        for replica in replicas:
            replica.ready()
        yield Pair(url, replicas)
    finally:
        for replica in replicas:
            replica.kill()
        valkey.stop()


def test_two_processes_on_one_store_end_each_others_work(pair: Pair) -> None:
    key = pair.tenant("crossing")
    one, two = (replica.url for replica in pair.replicas)
    headers = {"authorization": f"Bearer {key}", "x-task-id": "crossed"}
    body = {**BODY, "max_tokens": 2000}
    with (
        httpx.Client(headers=headers, timeout=60) as client,
        client.stream("POST", f"{one}/v1/completions", json={**body, "stream": True}) as stream,
    ):
        lines = (line for line in stream.iter_lines() if line)
        assert next(lines).startswith("data: ")
        assert client.delete(f"{two}/v1/tasks/crossed").status_code == 200
        *_, last = lines
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "cancelled"
        for url in (one, two):
            answer = client.post(f"{url}/v1/completions", json={**body, "max_tokens": 1})
            assert answer.status_code == 499


def test_64_calls_at_a_budget_for_10_spend_no_more_than_the_budget(pair):
    key = pair.tenant("budget", tokens_per_day=10 * SPENT)
    answers = pair.storm(key, 64)
    codes = Counter(answer.status_code for answer in answers)
    assert codes == {200: 10, 429: 54}
    refused = [answer for answer in answers if answer.status_code == 429]
    told = {(a.json()["error"]["code"], a.headers.get("x-should-retry")) for a in refused}
    assert told <= {("insufficient_quota", "false"), ("rate_limit_exceeded", None)}
    for number in (0, 1):  # nothing is open any more that could leave something over
        late = pair.ask(number, key)
        assert late.json()["error"]["code"] == "insufficient_quota"
        assert late.headers["x-should-retry"] == "false"


def test_what_a_call_on_another_server_reserves_of_a_budget_is_waited_for(pair):
    """It is cut off after a few of the 800 tokens that it may use; then the other call fits."""
    key = pair.tenant("reserved", tokens_per_day=1000)
    body = {**BODY, "max_tokens": 800, "stream": True}
    url = f"{pair.replicas[0].url}/v1/completions"
    headers = {"authorization": f"Bearer {key}"}
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data: ")
        refused = pair.ask(1, key, max_tokens=400)
        hopeless = pair.ask(1, key, max_tokens=1000)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (429, "rate_limit_exceeded")
    assert (error["limit"], "x-should-retry" in refused.headers) == ("tokens_per_day", False)
    assert int(refused.headers["retry-after"]) >= 1
    assert hopeless.json()["error"]["code"] == "insufficient_quota"
    end = time.monotonic() + 60
    while not (answer := pair.ask(1, key, max_tokens=400)).is_success:
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert time.monotonic() < end
        time.sleep(0.1)


def test_tokens_of_a_minute_are_shared(pair):
    key = pair.tenant("minute", tokens_per_minute=10 * SPENT)
    began = time.monotonic()
    answers = pair.storm(key, 40)
    good = sum(answer.is_success for answer in answers)
    back = (time.monotonic() - began) / 60 * 10  # calls' worth that came back meanwhile
    assert 10 <= good <= 10 + back
    refused = [answer for answer in answers if not answer.is_success]
    assert all(0 < int(answer.headers["retry-after"]) <= 60 for answer in refused)
    assert {answer.headers["x-ratelimit-limit-tokens"] for answer in answers} == {"90"}


def test_a_cap_of_four_under_200_callers_who_hang_up(pair):
    """Each but the first is gone after a time of its own."""
    key = pair.tenant("cap", concurrency=4)
    headers = {"authorization": f"Bearer {key}"}
    body = BODY | {"max_tokens": 400, "stream": True}

    async def scenario() -> None:
        async with httpx.AsyncClient(headers=headers, timeout=60) as client:

            async def hang_up(number: int) -> None:
                url = f"{pair.replicas[number % 2].url}/v1/completions"
                try:
                    async with asyncio.timeout(0.05 + 0.013 * number):
                        async with client.stream("POST", url, json=body) as answer:
                            async for _ in answer.aiter_raw():
                                pass
                except TimeoutError:
                    pass

            first = f"{pair.replicas[0].url}/v1/completions"
            async with client.stream("POST", first, json=body) as answer:
                await anext(answer.aiter_raw())
                await asyncio.gather(*(hang_up(number) for number in range(1, 200)))

    asyncio.run(scenario())
    end = time.monotonic() + 60
    while pair.ask(0, key).headers.get("ratelimit") != '"concurrency";r=4;t=0':
        assert time.monotonic() < end
        time.sleep(0.05)
    assert pair.ask(1, key).is_success
    last = BODY["max_tokens"]  # only of the calls after the storm
    while not all(last in asked(replica, "cap") for replica in pair.replicas):
        assert time.monotonic() < end
        time.sleep(0.05)
    changes = sorted(change for replica in pair.replicas for change in lives(replica, "cap"))
    assert 1 <= max(accumulate(change for _, change in changes)) <= 4


def noted(replica: Replica, kind: str, tenant: str) -> list[dict[str, Any]]:
    """What the command log of a server says of the tenant's sequences."""
    records = (record for _, record in CommandLogFile(replica.folder / COMMANDS).records())
    events = (json.loads(record.line) for record in records if isinstance(record, Noted))
    return [e for e in events if e["event"] == kind and e["lineage"]["tenant"] == tenant]


def asked(replica: Replica, tenant: str) -> list[int]:
    """How many tokens each call of the tenant wanted."""
    return [event["max_tokens"] for event in noted(replica, "SequenceArrived", tenant)]


def lives(replica: Replica, tenant: str) -> list[tuple[int, int]]:
    """When a sequence of the tenant came (1) or went (-1), by the clock of the whole machine."""
    came = [(event["now"], 1) for event in noted(replica, "SequenceArrived", tenant)]
    return came + [(event["now"], -1) for event in noted(replica, "SequenceEnded", tenant)]


def test_one_call_at_a_time_from_server_to_server(pair):
    key = pair.tenant("single", concurrency=1)
    for number in range(12):
        answer = pair.ask(number // 2 % 2, key, max_tokens=1)
        assert answer.status_code == 200, answer.text


def test_what_a_killed_server_did_for_a_task_is_missed(pair):
    """Nobody can say whether it knew another task, until it is known to be gone."""
    key = pair.tenant("told")
    headers = {"authorization": f"Bearer {key}", "x-task-id": "both"}
    kept, lost = pair.replicas

    def look(task: str = "both") -> httpx.Response:
        return httpx.get(f"{kept.url}/v1/tasks/{task}", headers=headers, timeout=60)

    for replica in pair.replicas:
        url = f"{replica.url}/v1/completions"
        httpx.post(url, json=BODY, headers=headers, timeout=60).raise_for_status()
    end = time.monotonic() + 60
    while not (state := look().json())["complete"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert state["usage"]["total_tokens"] == 2 * SPENT
    lost.kill()
    state = look().json()
    assert (state["complete"], state["missing_servers"]) == (False, 1)
    assert state["usage"]["total_tokens"] == SPENT
    assert look("never").json()["error"]["code"] == "servers_silent"
    lost.start()  # in its former place
    lost.ready()
    while look("never").status_code != 404:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_a_killed_server_held_comes_back(pair):
    """When its lease is over, unless it is started again; what it had reserved stays spent."""
    key = pair.tenant("lost", concurrency=2, tokens_per_day=1000)
    lost = pair.replicas[0]
    body = BODY | {"max_tokens": 300, "stream": True}
    headers = {"authorization": f"Bearer {key}"}
    with (
        httpx.stream("POST", f"{lost.url}/v1/completions", json=body, headers=headers) as first,
        httpx.stream("POST", f"{lost.url}/v1/completions", json=body, headers=headers) as second,
    ):
        assert (first.status_code, second.status_code) == (200, 200)
        assert pair.ask(1, key).json()["error"]["limit"] == "concurrency"
        os.kill(lost.process.pid, signal.SIGKILL)
        lost.process.wait()
    killed = time.monotonic()
    while pair.ask(1, key, max_tokens=1).status_code == 429:
        assert time.monotonic() < killed + LEASE + 10
        time.sleep(0.1)
    # What the killed server had reserved is spent: 2 x 301 tokens, and 2 of the call just now.
    refused = pair.ask(1, key, max_tokens=397)
    assert 0 < refused.json()["error"]["remaining"] <= 1000 - 602 - 2
