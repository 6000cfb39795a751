"""Whatever a tenant's key is answered says how the tenant's limits stand."""

import httpx
import pytest

from gateway.operations import OPERATIONS, Operation
from tenants.model import READ, Tenant
from tests.gateway.live import HELLO, MODEL, LiveServer

pytestmark = pytest.mark.model  # the text is that of the default model

TENANTS = [operation for operation in OPERATIONS if operation.key == "tenant"]
OPENAI = "x-ratelimit-limit-requests"
ANTHROPIC = "anthropic-ratelimit-requests-limit"
NAMES = {"model": MODEL, "task": "t", "run": "r", "attempt": "a", "request": "q"}
BODIES = {
    "ChatRequest": {"model": MODEL, "messages": HELLO, "max_tokens": 2},
    "MessagesRequest": {"model": MODEL, "messages": HELLO, "max_tokens": 2},
    "CompletionRequest": {"model": MODEL, "prompt": "hi", "max_tokens": 2},
    "CommitRequest": {"attempt": "a"},
}


def ask(server: LiveServer, operation: Operation, key: str, **body: object) -> httpx.Response:
    with server.client(key) as client:
        path = operation.path.format(**NAMES)
        content = {**BODIES[operation.body], **body} if operation.body else None
        return client.request(operation.method, path, json=content)


def limited(server: LiveServer, number: int) -> str:
    """A tenant that nobody has called for yet."""
    name = f"told-{number}"
    if name not in server.keys:
        server.add(Tenant(name, requests_per_minute=500, tokens_per_day=10**6))
    return name


@pytest.mark.parametrize("number", range(len(TENANTS)))
def test_every_route_tells_from_the_first_call_on(server: LiveServer, number: int) -> None:
    operation, name = TENANTS[number], limited(server, number)
    response = ask(server, operation, name)
    assert response.status_code in {200, 404}, response.text
    told = ANTHROPIC if operation.path == "/v1/messages" else OPENAI
    assert response.headers[told] == "500"
    assert '"tokens_per_day";q=1000000' in response.headers["ratelimit-policy"]
    assert response.headers["ratelimit"].startswith('"requests_per_minute";r=')


def test_refusals_and_streams_tell_too(server: LiveServer) -> None:
    name, chat = limited(server, 0), TENANTS[0]
    with server.client(name) as client:
        bad = client.post(chat.path, json=BODIES["ChatRequest"], headers={"x-timeout-ms": "soon"})
    assert (bad.status_code, bad.headers[OPENAI]) == (400, "500")
    stream = ask(server, chat, name, stream=True)
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers[OPENAI] == "500"
    server.keys["told-reader"] = server.on_loop(
        lambda store: store.create_key(name, scopes=[READ])
    ).raw
    forbidden = ask(server, chat, "told-reader")
    assert (forbidden.status_code, forbidden.headers[OPENAI]) == (403, "500")


def test_nobody_else_is_told(server: LiveServer) -> None:
    refused = [ask(server, operation, "unknown") for operation in TENANTS]
    assert {response.status_code for response in refused} == {401}
    with server.client("admin") as client:
        refused.append(client.get("/admin/tenants"))
    for response in refused:
        assert not [name for name in response.headers if "ratelimit" in name]
