"""Refusals that no waiting cures: stock clients are told so, and send such a call once."""

from collections.abc import Callable

import anthropic
import httpx
import openai
import pytest

from tenants.model import Tenant
from tests.gateway.live import HELLO, MODEL, LiveServer

pytestmark = pytest.mark.model  # the text is that of the default model

MOST = 50  # output tokens that the calls here ask for
CASES = {
    "a minute's tokens": ({"tokens_per_minute": MOST}, 429, "rate_limit_exceeded"),
    "a minute's prompts": ({"input_tokens_per_minute": 1}, 429, "rate_limit_exceeded"),
    "a minute's output": ({"output_tokens_per_minute": MOST - 1}, 429, "rate_limit_exceeded"),
    "a budget of tokens": ({"tokens_per_hour": MOST}, 429, "insufficient_quota"),
    "a budget of money": ({"money_per_day": 1e-6}, 429, "insufficient_quota"),
    "a queue": ({"queue_tokens": 1}, 400, "context_length_exceeded"),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, server: LiveServer) -> tuple[str, int, str]:
    """The key of a tenant with one limit that its calls exceed; the status and code of that."""
    settings, status, code = CASES[request.param]
    name = request.param.replace(" ", "-").replace("'", "")
    if name not in server.keys:
        server.add(Tenant(name, **settings))
    return server.keys[name], status, code


def sends(client: type[httpx.Client], call: Callable[[httpx.Client], object]) -> int:
    """How often `call` is sent until it fails."""
    tried: list[httpx.Request] = []
    with client(event_hooks={"request": [tried.append]}) as counting:
        call(counting)
    return len(tried)


def test_openai_s_client_sends_it_once(server: LiveServer, case: tuple[str, int, str]) -> None:
    key, status, code = case

    def call(http: httpx.Client) -> None:
        stock = openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, http_client=http)
        with pytest.raises(openai.APIStatusError) as refusal:
            stock.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=MOST)
        assert (refusal.value.status_code, refusal.value.code) == (status, code)

    assert sends(openai.DefaultHttpxClient, call) == 1


def test_anthropic_s_client_sends_it_once(server: LiveServer, case: tuple[str, int, str]) -> None:
    key, status, code = case

    def call(http: httpx.Client) -> None:
        stock = anthropic.Anthropic(base_url=server.url, api_key=key, http_client=http)
        with pytest.raises(anthropic.APIStatusError) as refusal:
            stock.messages.create(model=MODEL, messages=HELLO, max_tokens=MOST)
        assert (refusal.value.status_code, refusal.value.body["error"]["code"]) == (status, code)

    assert sends(anthropic.DefaultHttpxClient, call) == 1
