"""Callers who hang up, and tasks that are cancelled: work stops, and only that work."""

import json
import time

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from telemetry.events import Cause, Phase, SequenceArrived, SequenceEnded, StepPlanned
from tests.gateway.live import CONTEXT, HELLO, MODEL, LiveServer, eventually, read, read_all

pytestmark = pytest.mark.model  # the text is that of the default model

ENDLESS = {"model": MODEL, "messages": HELLO, "ignore_eos": True}
LONG = [{"role": "user", "content": "word " * 1500}]
STREAMING = pytest.mark.parametrize("stream", [False, True])


def content(**more) -> bytes:
    return json.dumps({**ENDLESS, **more}).encode()


def steps_of(server: LiveServer, sequence: int) -> list[StepPlanned]:
    planned = (event for event in server.events.snapshot() if isinstance(event, StepPlanned))
    return [event for event in planned if sequence in event.sequences]


@pytest.fixture
def slow(server: LiveServer) -> LiveServer:
    """A model that never ends by itself, at 2 ms a step."""
    server.say("so it goes ", endless=True, step_seconds=0.002)
    return server


@STREAMING
def test_hanging_up_during_decode(slow, stream):
    request = f"decode-{stream}"
    with slow.connect(content(stream=stream), x_request_id=request) as connection:
        eventually(lambda: slow.logged(SequenceArrived, request))
        (arrived,) = slow.logged(SequenceArrived, request)
        eventually(lambda: len(steps_of(slow, arrived.sequence)) > 5)
        if stream:
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
    (end,) = slow.ends(request)
    assert (end.cause, end.phase) == (Cause.DISCONNECTED, Phase.DECODE)
    assert end.output_tokens > 0  # what was used is on record
    assert end.blocks_released > 0


@STREAMING
def test_hanging_up_during_prefill(slow, stream):
    request = f"prefill-{stream}"
    before = slow.model.steps
    with slow.model.held():
        with slow.connect(content(stream=stream, messages=LONG), x_request_id=request):
            eventually(lambda: slow.model.steps > before)
        time.sleep(0.1)  # the hang-up reaches the engine's mailbox while its step is held
    (end,) = slow.ends(request)
    assert end.cause is Cause.DISCONNECTED
    assert end.first_token is None
    assert len(steps_of(slow, end.sequence)) <= 1  # 1500 tokens take three


@STREAMING
def test_hanging_up_in_the_queue_costs_nobody_anything(slow, stream):
    request = f"queued-{stream}"
    with slow.occupied(8):
        with slow.connect(content(stream=stream), x_request_id=request):
            eventually(lambda: slow.logged(SequenceArrived, request))
        (end,) = slow.ends(request)
        eventually(lambda: slow.engine.status().load.running == 8)
    assert (end.cause, end.phase, end.admitted) == (Cause.DISCONNECTED, Phase.QUEUED, None)
    assert steps_of(slow, end.sequence) == []


def test_every_choice_ends(slow):
    with slow.connect(content(n=4), x_request_id="four"):
        eventually(lambda: len(slow.logged(SequenceArrived, "four")) == 4)
    assert [end.cause for end in slow.ends("four", 4)] == [Cause.DISCONNECTED] * 4


def test_the_metrics_tell_that_memory_came_back_though_nothing_runs_after(slow):
    def held() -> float:
        page = httpx.get(f"{slow.url}/metrics").text
        families = text_string_to_metric_families(page)
        (blocks,) = [each for each in families if each.name == "watermaster_kv_blocks"]
        state = {sample.labels["state"]: sample.value for sample in blocks.samples}
        assert sum(state.values()) == slow.engine.status().config.num_blocks
        return state["held"]

    slow.assert_idle()
    assert held() == 0
    with slow.connect(content(messages=LONG, n=2), x_request_id="memory"):
        eventually(lambda: held() > 10)
    slow.ends("memory")
    slow.assert_idle()
    assert held() == 0


def test_closing_a_stock_stream_stops_the_work(slow):
    with openai.OpenAI(base_url=f"{slow.url}/v1", api_key=slow.keys["gold"]) as stock:
        stream = stock.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, extra_headers={"x-request-id": "stock"}
        )
        next(iter(stream))
        stream.close()
    (end,) = slow.ends("stock")
    assert end.cause is Cause.DISCONNECTED
    assert end.output_tokens < CONTEXT / 4


# -- tasks ------------------------------------------------------------------------------------


def test_a_cancelled_task_ends_everything_under_it_and_nothing_else(slow):
    with (
        slow.client() as client,
        slow.connect(content(), x_task_id="task_1", x_request_id="whole") as whole,
        slow.connect(content(stream=True), x_task_id="task_1", x_request_id="stream") as stream,
        slow.connect(content(), x_task_id="task_10", x_request_id="ten"),
        slow.connect(content(), "bronze", x_task_id="task_1", x_request_id="bronze"),
    ):
        for request in ("whole", "stream", "ten", "bronze"):
            eventually(lambda request=request: slow.logged(SequenceArrived, request))
        assert stream.recv(15) == b"HTTP/1.1 200 OK"
        answer = client.delete("/v1/tasks/task_1")
        assert answer.json() == {"object": "cancellation", "task": "task_1", "cancelled": True}
        assert {end.cause for name in ("whole", "stream") for end in slow.ends(name)} == {
            Cause.CANCELLED
        }
        status, body = read(whole)
        assert status.startswith(b"HTTP/1.1 499 ")
        assert b"x-should-retry: false" in status
        error = json.loads(body)["error"]
        assert (error["code"], error["cause"]) == ("cancelled", "cancelled")
        assert error["usage"]["completion_tokens"] > 0
        rest = read_all(stream)
        assert b'"code":"cancelled"' in rest
        assert b"[DONE]" not in rest
        eventually(lambda: slow.engine.status().load.running == 2)
    assert slow.ends("ten")[0].cause is Cause.DISCONNECTED
    assert slow.ends("bronze")[0].cause is Cause.DISCONNECTED


def test_what_arrives_under_a_cancelled_task_is_refused(slow):
    with slow.client() as client, slow.client("bronze") as bronze:
        assert client.delete("/v1/tasks/gone").status_code == 200
        late = client.post("/v1/chat/completions", json=ENDLESS, headers={"x-task-id": "gone"})
        assert late.status_code == 499
        assert late.json()["error"]["cause"] == "task_cancelled"
        slow.say("fine")
        other = bronze.post(
            "/v1/chat/completions",
            json={"model": MODEL, "messages": HELLO},
            headers={"x-task-id": "gone"},
        )
        assert other.status_code == 200


def test_unknown_foreign_and_repeated_cancellations_answer_the_same(slow):
    with (
        slow.client() as client,
        slow.client("bronze") as bronze,
        slow.connect(content(), x_task_id="mine", x_request_id="foreign-1"),
    ):
        eventually(lambda: slow.logged(SequenceArrived, "foreign-1"))
        answers = [
            bronze.delete("/v1/tasks/mine"),
            client.delete("/v1/tasks/never-seen"),
            client.delete("/v1/tasks/never-seen"),
        ]
        # Another call's answer shows that the engine has seen them all.
        other = {"model": MODEL, "messages": HELLO, "max_tokens": 1}
        assert client.post("/v1/chat/completions", json=other).status_code == 200
        slow.flush()
        assert not slow.logged(SequenceEnded, "foreign-1")
        answers.append(client.delete("/v1/tasks/mine"))
        answers.append(client.delete("/v1/tasks/mine"))
        assert slow.ends("foreign-1")[0].cause is Cause.CANCELLED
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text.replace("never-seen", "mine") for answer in answers}) == 1


@pytest.mark.parametrize(
    ("path", "spared"),
    [
        ("/v1/tasks/tree/runs/r1", {"r2"}),
        ("/v1/tasks/tree/runs/r1/attempts/a1", {"a2", "r2"}),
        ("/v1/tasks/tree/runs/r1/attempts/a1/requests/q1", {"q2", "a2", "r2"}),
        ("/v1/tasks/tree/runs/r", {"q1", "q2", "a2", "r2"}),
    ],
)
def test_a_cancellation_can_be_narrowed(slow, path, spared):
    suffix = str(abs(hash(path)))
    calls = {"q1": ("r1", "a1"), "q2": ("r1", "a1"), "a2": ("r1", "a2"), "r2": ("r2", "a1")}
    connections = [
        slow.connect(
            content(),
            x_task_id=f"tree{suffix}",
            x_run_id=run,
            x_attempt_id=attempt,
            x_request_id=f"{name}{suffix}",
        )
        for name, (run, attempt) in calls.items()
    ]
    for name in calls:
        eventually(lambda name=name: slow.logged(SequenceArrived, name + suffix))
    path = path.replace("/tree", f"/tree{suffix}")
    path = path.replace("/q1", f"/q1{suffix}")
    with slow.client() as client:
        assert client.delete(path).json()["cancelled"] is True
    for name in calls.keys() - spared:
        assert slow.ends(name + suffix)[0].cause is Cause.CANCELLED
    eventually(lambda: slow.engine.status().load.running == len(spared))
    for connection in connections:
        connection.close()
    for name in spared:
        assert slow.ends(name + suffix)[0].cause is Cause.DISCONNECTED


@pytest.mark.parametrize("task", ["a%20b", "%2e%2e", "a" * 129, "*"])
def test_ids_that_cannot_exist_are_400(server, task):
    with server.client() as client:
        response = client.delete(f"/v1/tasks/{task}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "task"
