"""A key that has ended: stock clients are told so, once, and give up."""

import anthropic
import httpx
import openai
import pytest

from tests.gateway.live import HELLO, MODEL, LiveServer

pytestmark = pytest.mark.model  # the text is that of the default model


@pytest.fixture
def expired(server: LiveServer) -> str:
    """A key that was good until another took its place."""

    async def replace(store) -> str:
        old = await store.create_key("gold")
        await store.rotate_key(old.key.public_id, overlap=0)
        return old.raw

    return server.on_loop(replace)


def test_openai_s_client(server: LiveServer, expired: str) -> None:
    tried: list[httpx.Request] = []
    counting = openai.DefaultHttpxClient(event_hooks={"request": [tried.append]})
    url = f"{server.url}/v1"
    with (
        openai.OpenAI(base_url=url, api_key=expired, http_client=counting) as stock,
        pytest.raises(openai.AuthenticationError) as refusal,
    ):
        stock.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2)
    assert refusal.value.code == "invalid_api_key"
    assert refusal.value.body["reason"] == "expired"
    assert len(tried) == 1


def test_anthropic_s_client(server: LiveServer, expired: str) -> None:
    tried: list[httpx.Request] = []
    counting = anthropic.DefaultHttpxClient(event_hooks={"request": [tried.append]})
    with (
        anthropic.Anthropic(base_url=server.url, api_key=expired, http_client=counting) as stock,
        pytest.raises(anthropic.AuthenticationError) as refusal,
    ):
        stock.messages.create(model=MODEL, messages=HELLO, max_tokens=2)
    assert refusal.value.body["error"]["type"] == "authentication_error"
    assert refusal.value.body["error"]["reason"] == "expired"
    assert len(tried) == 1
