from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from engine.host.engine import HostConfig
from engine.runtime.text.codec import TextCodec
from gateway.state import EdgeLimits
from tenants.embedded import EmbeddedValkey
from tenants.prices import Price
from tests.gateway.fuzzed import Fuzzed, fuzzed_server
from tests.gateway.live import LiveServer, live_server

if TYPE_CHECKING:
    from anthropic import Anthropic

PRICE = Price(prompt=3.0, cached=1.0, output=10.0)
TEXT = "The river 🏞️ flows wörldwide, through 東京 and on."


@pytest.fixture(scope="session")
def codec(model_path: Path) -> TextCodec:
    return TextCodec.load(model_path)


@pytest.fixture(scope="session")
def session_environment() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="session")
def shared_server(
    codec: TextCodec,
    tmp_path_factory: pytest.TempPathFactory,
    session_environment: pytest.MonkeyPatch,
) -> Iterator[LiveServer]:
    session_environment.setenv(
        "OTEL_BSP_SCHEDULE_DELAY", "20"
    )  # milliseconds until spans are exported
    with live_server(
        codec,
        tmp_path_factory.mktemp("valkey"),
        limits=EdgeLimits(max_requests=30, max_tenant_requests=20),
        host=HostConfig(max_buffered_tokens=2000),
        price=PRICE,
    ) as server:
        yield server


@pytest.fixture
def server(shared_server: LiveServer) -> Iterator[LiveServer]:
    """A server that says TEXT at full speed; checked to be idle again after each test."""
    shared_server.say(TEXT)
    yield shared_server
    shared_server.model.running.set()
    shared_server.change(draining=False)
    shared_server.tighten()
    shared_server.assert_idle()


@pytest.fixture
def anthropic_client(server: LiveServer) -> Iterator[httpx.Client]:
    """Sends the headers that Anthropic's clients send."""
    headers = {"x-api-key": server.keys["gold"], "anthropic-version": "2023-06-01"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=20) as client:
        yield client


@pytest.fixture
def stock_anthropic(server: LiveServer) -> "Iterator[Anthropic]":
    from anthropic import Anthropic

    with Anthropic(base_url=server.url, api_key=server.keys["gold"]) as stock:
        yield stock


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """A store of the module's own, which its tests may take away."""
    valkey = EmbeddedValkey(tmp_path_factory.mktemp("valkey"))
    yield valkey
    valkey.stop()


@pytest.fixture(scope="module")
def pair(codec: TextCodec, valkey: EmbeddedValkey) -> Iterator[list[LiveServer]]:
    """Two servers on that store."""
    with (
        LiveServer(valkey.start(), codec) as first,
        LiveServer(first.store_url, codec, replica_of=first) as second,
    ):
        yield [first, second]


@pytest.fixture(scope="module")
def fuzzed(codec: TextCodec, valkey: EmbeddedValkey) -> Iterator[Fuzzed]:
    with fuzzed_server(codec, valkey) as fuzzed:
        yield fuzzed
