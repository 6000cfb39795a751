"""A server is killed in mid-call: of a budget stays spent what its calls used, and no more."""

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

BUDGETS = {"tokens_per_day": 100_000, "money_per_month": 1000.0}
PRICES = {"WATERMASTER_PRICES_PROMPT": "1000", "WATERMASTER_PRICES_OUTPUT": "2000"}


def told(url: str, key: str) -> tuple[dict[str, float], dict[str, float]]:
    """What is gone of each budget, and what the ledger says was used."""
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}) as client:
        limits = client.get("/v1/backpressure").json()["limits"]
        (line,) = client.get("/v1/usage?by=").json()["data"]
    gone = {one["limit"]: round(one["amount"] - one["remaining"], 6) for one in limits}
    used = {
        "tokens_per_day": line["prompt_tokens"] + line["output_tokens"],
        "money_per_month": round(line["money"], 6),
    }
    return gone, used


def agree(url: str, key: str) -> bool:
    gone, used = told(url, key)
    return gone == used


def test_open_calls_of_a_killed_server_are_settled_at_what_they_used(
    folder: Path, start: Callable[..., ServerProcess]
) -> None:
    """By another server of the folder, and by the one that comes after it."""
    key = demo_keys(folder)["gold"]
    options = [f"--{name.replace('_', '-')}={amount}" for name, amount in BUDGETS.items()]
    command = [sys.executable, "-c", "from gateway.cli import main; main()"]
    update = [*command, "tenants", "update", "gold", *options]
    subprocess.run(update, cwd=folder, env=plain_environment(), check=True, capture_output=True)

    def serve() -> tuple[ServerProcess, str]:
        server = start(WATERMASTER_MODEL_DEVICE="simulated", **PRICES)
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

    third, other = serve()  # beside the second
    kill_in_a_call(second, url)
    eventually(lambda: agree(other, key), 20)
    assert told(other, key)[1]["tokens_per_day"] > used["tokens_per_day"] + 60
    assert third.process.poll() is None
