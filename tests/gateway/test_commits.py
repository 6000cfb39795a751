"""`POST /v1/tasks/{task}/commit`: a race is won, over HTTP."""

import json

import httpx
import pytest

from telemetry.events import CancelApplied, Cause, SequenceArrived, StepCommitted
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually, read, read_all

pytestmark = pytest.mark.model  # the text is that of the default model

CALL = {"model": MODEL, "messages": HELLO, "ignore_eos": True, "seed": 0}
TEXT = "so it goes "


def content(**more) -> bytes:
    return json.dumps(CALL | more).encode()


@pytest.fixture
def slow(server: LiveServer) -> LiveServer:
    """A model that never ends by itself, at 2 ms a step."""
    server.say(TEXT, endless=True, step_seconds=0.002)
    return server


def tokens_of(server: LiveServer, sequence: int, after: int = 0) -> int:
    """Output tokens of a sequence in steps that ended later than `after` (monotonic ns)."""
    server.flush()
    return sum(
        tokens
        for event in server.events.snapshot()
        if isinstance(event, StepCommitted) and event.now > after
        for number, tokens in zip(event.sequences, event.output_tokens, strict=True)
        if number == sequence
    )


def started(server: LiveServer, request: str) -> int:
    """The sequence of a request, once it has spoken."""
    eventually(lambda: server.logged(SequenceArrived, request))
    (arrived,) = server.logged(SequenceArrived, request)
    eventually(lambda: tokens_of(server, arrived.sequence) > 1)
    return arrived.sequence


def commit(client: httpx.Client, task: str, **body: object) -> httpx.Response:
    return client.post(f"/v1/tasks/{task}/commit", json=body)


def test_racing_fan_outs_cost_their_losers_at_most_one_step_after_the_commit(slow):
    """Ten of three. The commit comes while a step is being computed, which is the latest word."""
    with slow.client() as client:
        alone = client.post("/v1/chat/completions", json=CALL | {"max_tokens": 200}).json()
        for number in range(10):
            task, names = f"race{number}", [f"race{number}-{i}" for i in range(3)]
            calls = [
                slow.connect(content(max_tokens=200), x_task_id=task, x_request_id=name)
                for name in names
            ]
            sequences = [started(slow, name) for name in names]
            with slow.model.held():
                eventually(lambda: slow.model.stuck)
                # An attempt that was not named is that of its request.
                assert commit(client, task, attempt=names[0]).status_code == 200
            status, body = read(calls[0])
            assert status.startswith(b"HTTP/1.1 200 ")
            answer = json.loads(body)
            assert answer["choices"] == alone["choices"]
            assert answer["usage"]["completion_tokens"] == 200
            for name, sequence, call in list(zip(names, sequences, calls, strict=True))[1:]:
                (end,) = slow.ends(name)
                assert end.cause is Cause.LOST_RACE
                assert end.blocks_released > 0
                assert tokens_of(slow, sequence, after=received(slow, task)) == 1
                status, body = read(call)
                assert status.startswith(b"HTTP/1.1 499 ")
                assert json.loads(body)["error"]["usage"]["completion_tokens"] == end.output_tokens
            for call in calls:
                call.close()
            slow.assert_idle()
            state = client.get(f"/v1/tasks/{task}").json()
            assert state["causes"] == {"length": 1, "lost_race": 2}
            assert state["cancellation_lag_tokens"] == 2


def received(server: LiveServer, task: str) -> int:
    """When the commit of a task came."""
    (applied,) = (
        event
        for event in server.events.snapshot()
        if isinstance(event, CancelApplied) and event.scope.task == task
    )
    assert (applied.decode, applied.prefill, applied.queued) == (2, 0, 0)
    assert applied.received is not None
    return applied.received


def test_a_losing_stream_ends_with_an_error_that_says_so(slow):
    with (
        slow.client() as client,
        slow.connect(content(stream=True), x_task_id="s", x_request_id="losing") as stream,
    ):
        started(slow, "losing")
        assert commit(client, "s", attempt="another").status_code == 200
        rest = read_all(stream)
    assert b'"code":"lost_race"' in rest
    assert b'"cause":"lost_race"' in rest
    assert b"[DONE]" not in rest


def test_late_losers_are_refused_and_the_winner_goes_on(server):
    body = {"model": MODEL, "messages": HELLO}
    with server.client(x_task_id="late") as client:
        assert commit(client, "late", attempt="a1", run="r1").json() == {
            "object": "commitment",
            "task": "late",
            "attempt": "a1",
            "run": "r1",
            "committed": True,
        }
        answers = {
            (attempt, run): client.post(
                "/v1/chat/completions",
                json=body,
                headers={"x-attempt-id": attempt, "x-run-id": run},
            )
            for attempt, run in (("a1", "r1"), ("a1", "r2"), ("a2", "r1"))
        }
    assert {named: answer.status_code for named, answer in answers.items()} == {
        ("a1", "r1"): 200,
        ("a1", "r2"): 499,
        ("a2", "r1"): 499,
    }
    late = answers["a2", "r1"]
    assert late.headers["x-should-retry"] == "false"
    error = late.json()["error"]
    assert (error["code"], error["cause"]) == ("lost_race", "race_over")
    assert "usage" not in error


def test_a_race_has_one_winner_and_may_be_told_it_twice(server):
    with server.client() as client, server.client("bronze") as bronze:
        first, again = (commit(client, "one", attempt="a1") for _ in range(2))
        other = commit(client, "one", attempt="a2")
        narrower = commit(client, "one", attempt="a1", run="r1")
        elsewhere = commit(bronze, "one", attempt="a2")
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json()
    assert other.status_code == narrower.status_code == 409
    assert other.headers["x-should-retry"] == "false"  # stock clients resend a 409 otherwise
    error = other.json()["error"]
    assert (error["code"], error["param"]) == ("commit_conflict", "attempt")
    assert error["committed"] == {"attempt": "a1", "run": None}
    assert "'a1'" in error["message"]
    assert elsewhere.status_code == 200  # a task of its own


def test_another_tenants_commit_ends_nothing(slow):
    with (
        slow.client() as client,
        slow.client("bronze") as bronze,
        slow.connect(content(max_tokens=100), x_task_id="mine", x_request_id="theirs") as call,
    ):
        started(slow, "theirs")
        assert commit(bronze, "mine", attempt="a1").status_code == 200
        assert read(call)[0].startswith(b"HTTP/1.1 200 ")
        # And a task nobody has heard of is answered like any other.
        assert commit(client, "never-seen", attempt="a1").status_code == 200


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{}", "invalid_value", "attempt"),
        (b'{"attempt": null}', "invalid_value", "attempt"),
        (b'{"attempt": 7}', "invalid_value", "attempt"),
        (b'{"attempt": "a b"}', "invalid_value", "attempt"),
        (b'{"attempt": "a", "run": ""}', "invalid_value", "run"),
        (b'{"attempt": "a", "task": "t"}', "unknown_parameter", "task"),
        (b'["a"]', "invalid_json", None),
        (b'{"attempt"', "invalid_json", None),
    ],
)
def test_a_malformed_commit_is_400_and_names_what_is_wrong(server, body, code, param):
    with server.client() as client:
        answer = client.post("/v1/tasks/bad/commit", content=body)
        assert answer.status_code == 400
        assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, param)
        assert commit(client, "bad", attempt="a").status_code == 200  # nothing was settled before


def test_commits_are_bounded_and_need_a_key(server):
    with server.client() as client:
        assert client.post("/v1/tasks/big/commit", content=b" " * 5000).status_code == 413
        assert client.post("/v1/tasks/a%20b/commit", json={"attempt": "a"}).status_code == 400
        assert client.get("/v1/tasks/big/commit").status_code == 405
    assert httpx.post(f"{server.url}/v1/tasks/t/commit", json={"attempt": "a"}).status_code == 401


def test_baggage_names_the_attempt_at_any_hop(server):
    body = {"model": MODEL, "messages": HELLO}
    late = [
        ("baggage", "other=1,watermaster.task=carried;hop=2"),
        ("baggage", "watermaster.attempt=a%402"),
    ]
    won = [("baggage", "watermaster.task=carried,watermaster.attempt=a%401")]
    broken = [("baggage", "watermaster.task=a b,=%%;")]
    with server.client() as client:
        assert commit(client, "carried", attempt="a@1").status_code == 200
        answers = [
            client.post("/v1/chat/completions", json=body, headers=headers)
            for headers in (late, won, broken)
        ]
    assert [answer.status_code for answer in answers] == [499, 200, 200]
