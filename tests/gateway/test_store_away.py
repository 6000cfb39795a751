"""With the store gone, callers seen lately go on and others are told to come back."""

import httpx
import pytest

from engine.host.engine import HostConfig
from engine.runtime.text.codec import TextCodec
from gateway.state import EdgeLimits
from tenants.embedded import EmbeddedValkey
from tests.gateway.live import HELLO, MODEL, LiveServer

pytestmark = pytest.mark.model  # the text is that of the default model


def test_the_store_goes_away(codec: TextCodec, tmp_path):
    valkey = EmbeddedValkey(tmp_path)
    server = LiveServer(valkey.start(), codec, EdgeLimits(), HostConfig())
    server.start()
    server.say("still here")
    try:
        assert chat(server, "gold").status_code == 200
        valkey.stop()
        response = chat(server, "bronze")  # never seen
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "store_unavailable"
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert chat(server, "gold").status_code == 200
    finally:
        server.stop()
        valkey.stop()


def chat(server: LiveServer, key: str) -> httpx.Response:
    with server.client(key) as client:
        return client.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO})
