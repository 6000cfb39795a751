"""`GET /v1/tasks/{task}` over HTTP."""

import json

import httpx
import pytest

from telemetry.events import SequenceArrived
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually

pytestmark = pytest.mark.model  # the text is that of the default model

CALL = {"model": MODEL, "messages": HELLO}


def state_of(client: httpx.Client, task: str) -> dict:
    answer = client.get(f"/v1/tasks/{task}")
    assert answer.status_code == 200, answer.text
    state = answer.json()
    assert (state["object"], state["task"]) == ("task", task)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert state["usage"][name] == sum(one["usage"][name] for one in state["sequences"])
    assert sum(state["states"].values()) == len(state["sequences"])
    return state


def test_usage_is_that_of_the_answers_and_a_prompt_counts_once_for_all_choices(
    server: LiveServer,
) -> None:
    with server.client(x_task_id="used", x_run_id="r1") as client:
        answers = [
            client.post(
                "/v1/chat/completions", json=CALL | more, headers={"x-attempt-id": attempt}
            ).json()
            for attempt, more in (("a1", {"n": 3}), ("a2", {}))
        ]
        state = state_of(client, "used")
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert state["usage"][name] == sum(answer["usage"][name] for answer in answers)
    assert state["states"] == {"queued": 0, "prefill": 0, "decode": 0, "ended": 4, "refused": 0}
    assert state["causes"] == {"stop": 4}
    assert state["committed"] is None
    assert state["cancellation_lag_tokens"] == 0
    lineage = [(one["run"], one["attempt"]) for one in state["sequences"]]
    assert lineage == [("r1", "a1")] * 3 + [("r1", "a2")]
    assert state["sequences"][0]["ended_in"] == "decode"


def test_cached_prompt_tokens_are_told(server: LiveServer) -> None:
    """The second call finds the full blocks of the first one's prompt."""
    words = [{"role": "user", "content": "rivers and lakes " * 40}]
    with server.client(x_task_id="cached") as client:
        answers = [
            client.post("/v1/chat/completions", json=CALL | {"messages": words}).json()
            for _ in range(2)
        ]
        state = state_of(client, "cached")
    first, second = (a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers)
    assert second > first
    assert state["usage"]["prompt_tokens_details"]["cached_tokens"] == first + second


def test_what_runs_waits_and_was_refused_is_told_apart(server: LiveServer) -> None:
    """The last place of the batch, then the queue, then the tombstone of a race that is over."""
    server.say("so it goes ", endless=True, step_seconds=0.002)
    body = json.dumps(CALL | {"ignore_eos": True}).encode()
    winner = {"x_task_id": "mixed", "x_attempt_id": "a1"}
    with (
        server.client(x_task_id="mixed") as client,
        server.occupied(7),
        server.connect(body, x_request_id="runs", **winner),
    ):
        eventually(lambda: server.engine.status().load.running == 8)
        with server.connect(body, x_request_id="waits", **winner):
            eventually(lambda: server.logged(SequenceArrived, "waits"))
            client.post("/v1/tasks/mixed/commit", json={"attempt": "a1"}).raise_for_status()
            late = client.post("/v1/chat/completions", json=CALL, headers={"x-attempt-id": "a2"})
            assert late.status_code == 499
            state = state_of(client, "mixed")
    assert state["states"] == {"queued": 1, "prefill": 0, "decode": 1, "ended": 0, "refused": 1}
    assert state["causes"] == {"race_over": 1}
    assert state["committed"] == {"attempt": "a1", "run": None}
    runs, waits, refused = state["sequences"]
    assert [one["request"] for one in (runs, waits)] == ["runs", "waits"]
    assert runs["usage"]["completion_tokens"] > 0
    assert waits["usage"]["completion_tokens"] == 0
    assert (refused["attempt"], refused["cause"]) == ("a2", "race_over")
    assert refused["usage"]["total_tokens"] == 0


def test_a_prompt_that_was_never_looked_at_is_no_usage(server: LiveServer) -> None:
    server.say("so it goes ", endless=True, step_seconds=0.002)
    with server.occupied(), server.client(x_task_id="unseen", x_timeout_ms="100") as client:
        late = client.post("/v1/chat/completions", json=CALL)
        assert late.status_code == 504
        state = state_of(client, "unseen")
    assert state["causes"] == {"deadline_exceeded": 1}
    assert late.json()["error"]["usage"] == state["usage"] == state["sequences"][0]["usage"]
    assert state["usage"]["total_tokens"] == 0


def test_another_tenants_task_answers_like_one_that_never_was(server: LiveServer) -> None:
    with server.client(x_task_id="private") as client:
        client.post("/v1/chat/completions", json=CALL).raise_for_status()
        assert state_of(client, "private")["states"]["ended"] == 1
    with server.client("elsewhere") as client:  # another key of the same tenant
        assert state_of(client, "private")["states"]["ended"] == 1
    with server.client("bronze") as client:
        found = client.get("/v1/tasks/private")
        unknown = client.get("/v1/tasks/never")
        partly = client.get("/v1/tasks/priv")
    assert found.status_code == unknown.status_code == partly.status_code == 404
    message = found.json()["error"]["message"].replace("private", "never")
    assert message == unknown.json()["error"]["message"]


def test_the_newest_sequences_are_listed_and_all_are_counted(server: LiveServer) -> None:
    server.say("yes")
    with server.client(x_task_id="many") as client:
        for _ in range(9):
            client.post("/v1/chat/completions", json=CALL | {"n": 16}).raise_for_status()
        state = client.get("/v1/tasks/many").json()
    assert state["states"]["ended"] == 144
    assert len(state["sequences"]) == 128
    assert len({one["request"] for one in state["sequences"]}) == 8


def test_a_key_is_needed_and_ids_are_checked(server: LiveServer) -> None:
    assert httpx.get(f"{server.url}/v1/tasks/x").status_code == 401
    with server.client() as client:
        assert client.get("/v1/tasks/%20").status_code == 400
        assert client.post("/v1/tasks/x").status_code == 405
