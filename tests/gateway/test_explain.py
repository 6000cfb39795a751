"""`GET /v1/requests/{id}/explain` over HTTP."""

import httpx
import pytest

from telemetry.waterfall import Part
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually


def ask(client: httpx.Client, **more: object) -> httpx.Response:
    return client.post(
        "/v1/chat/completions", json={"model": MODEL, "messages": HELLO, "max_tokens": 20, **more}
    )


def explained(client: httpx.Client, request: str) -> list[dict]:
    answer = client.get(f"/v1/requests/{request}/explain")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["object"], body["request"]) == ("explanation", request)
    for sequence in body["sequences"]:
        assert [entry["part"] for entry in sequence["parts"]] == list(Part)
        parts = {entry["part"]: entry["ns"] for entry in sequence["parts"]}
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == sequence["latency_ns"]
        sequence["parts"] = parts
    return body["sequences"]


def test_a_call_is_explained_from_the_edge_to_its_last_byte(server: LiveServer) -> None:
    server.say("one two three", endless=True, step_seconds=0.002)
    with server.client(x_request_id="slow-1", x_task_id="task-1") as client:
        assert ask(client, ignore_eos=True, stream=True).status_code == 200
        (sequence,) = explained(client, "slow-1")
    assert (sequence["finished"], sequence["cause"]) == (True, "length")
    assert (sequence["task"], sequence["steps"]) == ("task-1", 20)
    parts = sequence["parts"]
    assert parts[Part.GATEWAY] > 0
    assert parts[Part.DELIVERY] > 0
    assert parts[Part.DECODE] >= 19 * 2_000_000
    assert sequence["preemptions"] == 0


def test_every_choice_is_explained(server: LiveServer) -> None:
    server.say("one", "two")
    with server.client(x_request_id="both") as client:
        assert ask(client, n=2).status_code == 200
        assert len(explained(client, "both")) == 2


def test_a_running_call_is_explained_so_far(server: LiveServer) -> None:
    server.say("on and on", endless=True, step_seconds=0.005)
    body = {"max_tokens": 1500, "ignore_eos": True, "stream": True}
    with server.client(x_request_id="running") as client:
        request = {"model": MODEL, "messages": HELLO, **body}
        with client.stream("POST", "/v1/chat/completions", json=request) as stream:
            lines = stream.iter_lines()  # closes the stream when it is dropped
            next(lines)
            with server.client() as other:
                eventually(lambda: other.get("/v1/requests/running/explain").status_code == 200)
                (sequence,) = explained(other, "running")
    assert (sequence["finished"], sequence["cause"]) == (False, None)
    assert sequence["parts"][Part.DELIVERY] == 0


def test_a_refused_call_is_explained_too(server: LiveServer) -> None:
    server.say("on and on", endless=True, step_seconds=0.005)
    client = server.client("small", x_request_id="refused")
    with server.occupied(8), server.occupied(1, "small"), client:
        assert ask(client, max_tokens=5).status_code == 429
        (sequence,) = explained(client, "refused")
    assert sequence["cause"] == "queue_full"
    assert sequence["steps"] == 0


@pytest.mark.parametrize("key", ["bronze", "elsewhere"])
def test_only_the_own_tenants_calls_are_known(server: LiveServer, key: str) -> None:
    """Another tenant gets the answer for what never was; another key of the same tenant may ask."""
    server.say("one two three")
    with server.client(x_request_id="mine") as client:
        assert ask(client).status_code == 200
    with server.client(key) as client:
        found = client.get("/v1/requests/mine/explain")
        unknown = client.get("/v1/requests/never/explain")
    assert unknown.status_code == 404
    assert found.status_code == (404 if key == "bronze" else 200)
    if key == "bronze":
        strip = found.json()["error"]["message"].replace("mine", "never")
        assert strip == unknown.json()["error"]["message"]


def test_a_key_is_needed_and_ids_are_checked(server: LiveServer) -> None:
    assert httpx.get(f"{server.url}/v1/requests/x/explain").status_code == 401
    with server.client() as client:
        assert client.get("/v1/requests/%20/explain").status_code == 400
        assert client.post("/v1/requests/x/explain").status_code == 405
