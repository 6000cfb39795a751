"""`POST /v1/tasks/{task}/commit`: a race is won, over HTTP."""

import json
from contextlib import ExitStack

import httpx
import pytest

from telemetry.events import SequenceArrived, StepCommitted
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


def test_racing_fan_outs_cost_their_losers_at_most_one_step_after_the_commit(server):
    """A hundred of three, two at a time. The commits come while a step is being computed, which is

    the latest word before its tokens are there.
    """
    server.say(TEXT, endless=True)
    call = {**CALL, "max_tokens": 200}
    with server.client() as client:
        alone = client.post("/v1/chat/completions", json=call).json()
        for number in range(0, 100, 2):
            with ExitStack() as stack:
                server.model.step_seconds = 0.002  # until the races are decided
                races = [Race(server, stack, f"race{number + i}", call) for i in range(2)]
                eventually(lambda: server.engine.status().load.running == 6)  # all have spoken
                with server.model.held():
                    eventually(lambda: server.model.stuck)
                    for race in races:
                        # An attempt that was not named is that of its request.
                        assert commit(client, race.task, attempt=race.names[0]).status_code == 200
                    server.model.step_seconds = 0.0
                for race in races:
                    race.check(alone)
                server.assert_idle()
                for race in races:
                    race.check_account(client.get(f"/v1/tasks/{race.task}").json())


class Race:
    """Three calls under one task, on connections of their own."""

    def __init__(self, server: LiveServer, stack: ExitStack, task: str, call: dict) -> None:
        self.task = task
        self.names = [f"{task}-{i}" for i in range(3)]
        body = json.dumps(call).encode()
        self.calls = [
            stack.enter_context(server.connect(body, x_task_id=task, x_request_id=name))
            for name in self.names
        ]

    def check(self, alone: dict) -> None:
        """The winner's answer is what it would have been `alone`, the losers' end at once."""
        (head, body), *losers = [read(call) for call in self.calls]
        answer = json.loads(body)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert answer["choices"] == alone["choices"]
        assert answer["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]
        for head, body in losers:
            assert head.startswith(b"HTTP/1.1 499 ")
            assert 0 < json.loads(body)["error"]["usage"]["completion_tokens"] < 200

    def check_account(self, told: dict) -> None:
        assert told["causes"] == {"length": 1, "lost_race": 2}
        lags = {one["request"]: one["cancellation_lag_tokens"] for one in told["sequences"]}
        assert lags == dict(zip(self.names, (0, 1, 1), strict=True))


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
    told = [answer.headers.get("x-watermaster-ignored-baggage") for answer in answers]
    assert told == [None, None, "watermaster.task"]


@pytest.mark.parametrize("more", [{"stream": True}, {"n": 0}])
def test_streams_and_refusals_say_too_what_baggage_was_ignored(server, more):
    body = {"model": MODEL, "messages": HELLO} | more
    sent = {"baggage": "watermaster.task=a b,watermaster.run=r1,watermaster.attempt=<x>"}
    with server.client() as client:
        answer = client.post("/v1/chat/completions", json=body, headers=sent)
    told = answer.headers["x-watermaster-ignored-baggage"]
    assert told == "watermaster.task, watermaster.attempt"
