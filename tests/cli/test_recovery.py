"""A server ends in mid-call: of a budget stays spent what its calls used, and no more."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cli.test_server import (
    LONG,
    ServerProcess,
    Stream,
    demo_keys,
    folder,
    plain_environment,
    start,
)
from tests.gateway.live import eventually

__all__ = ["folder", "start"]  # fixtures

pytestmark = [pytest.mark.server, pytest.mark.model]

LIMITS = {"tokens_per_day": 100_000, "money_per_month": 1000.0, "concurrency": 3}
SETTINGS = {
    "WATERMASTER_MODEL_DEVICE": "simulated",
    "WATERMASTER_PRICES_PROMPT": "1000",
    "WATERMASTER_PRICES_OUTPUT": "2000",
    "WATERMASTER_SERVER_DRAIN_GRACE": "0.2",
}


def told(url: str, key: str) -> tuple[dict[str, float], dict[str, float]]:
    """What is gone of each limit, and what the ledger says was used."""
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}) as client:
        limits = client.get("/v1/backpressure").json()["limits"]
        (line,) = client.get("/v1/usage?by=").json()["data"]
    gone = {one["limit"]: round(one["amount"] - one["remaining"], 6) for one in limits}
    used = {
        "tokens_per_day": line["prompt_tokens"] + line["output_tokens"],
        "money_per_month": round(line["money"], 6),
        "concurrency": 0,
    }
    return gone, used


def agree(url: str, key: str) -> bool:
    gone, used = told(url, key)
    return gone == used


def test_a_call_under_an_idempotency_key_may_be_sent_again_to_the_successor(
    folder: Path, start: Callable[..., ServerProcess]
) -> None:
    """At once: its predecessor is known to be dead, though its claim of the key lasts on."""
    key = demo_keys(folder)["gold"]
    headers = {"authorization": f"Bearer {key}", "idempotency-key": "once"}
    body = {"model": "smollm2-135m", "prompt": "Water", "stream": True, **LONG}
    server = start(**SETTINGS)
    address = f"{server.url()}/v1/completions"
    with httpx.stream("POST", address, json=body, headers=headers, timeout=60) as stream:
        assert next(stream.iter_lines()).startswith("data: ")
        server.process.kill()
        server.wait()
    url = start(**SETTINGS).url()
    again = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
    assert again.status_code == 200, again.text
    assert again.text.endswith("data: [DONE]\n\n")
    assert "idempotent-replayed" not in again.headers


def test_open_calls_of_a_server_that_ends_are_settled_at_what_they_used(
    folder: Path, start: Callable[..., ServerProcess]
) -> None:
    """However it ends; of a killed one by another server of the folder, or by its successor."""
    key = demo_keys(folder)["gold"]
    options = [f"--{name.replace('_', '-')}={amount}" for name, amount in LIMITS.items()]
    command = [sys.executable, "-c", "from gateway.cli import main; main()"]
    update = [*command, "tenants", "update", "gold", *options]
    subprocess.run(update, cwd=folder, env=plain_environment(), check=True, capture_output=True)

    def serve() -> tuple[ServerProcess, str]:
        server = start(**SETTINGS)
        return server, server.url()

    def kill_in_a_call(server: ServerProcess, url: str) -> None:
        streams = [Stream(url, key, **LONG) for _ in range(3)]
        eventually(lambda: all(len(stream.lines) > 20 for stream in streams))
        server.process.kill()
        server.wait()
        for stream in streams:
            stream.join()

    first, url = serve()
    assert httpx.get(f"{url}/v1/models", headers={"x-api-key": key}).status_code == 200
    kill_in_a_call(first, url)
    second, url = serve()  # in the place of the first
    eventually(lambda: agree(url, key), 20)
    gone, used = told(url, key)
    assert gone == used
    assert 60 < used["tokens_per_day"] < 3 * LONG["max_tokens"]

    told_before = used["tokens_per_day"]
    third, other = serve()  # beside the second
    kill_in_a_call(second, url)
    eventually(lambda: agree(other, key), 20)
    used = told(other, key)[1]
    assert used["tokens_per_day"] > told_before + 60

    stream = Stream(other, key, **LONG)  # does not end within the grace period
    third.process.send_signal(signal.SIGTERM)
    assert third.wait() == 0
    stream.join()
    _, last = serve()
    eventually(lambda: agree(last, key), 20)
    assert told(last, key)[1]["tokens_per_day"] > used["tokens_per_day"]
