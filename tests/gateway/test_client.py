"""`gateway.client` against the real edge."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.client import (
    AsyncClient,
    BrokenStreamError,
    Client,
    DeadlineError,
    GivenUp,
    NoneAcceptedError,
    RefusedError,
    RetryPolicy,
    UnreachableError,
    scope,
)
from policies.promises import PromiseConfig
from telemetry.admission_events import PromiseBooked, PromiseClaimed
from telemetry.events import Cause, SequenceEnded, SequenceRefused
from tests.gateway.conftest import TEXT
from tests.gateway.live import (
    CONTEXT,
    HELLO,
    MODEL,
    PLAIN,
    LiveServer,
    eventually,
    live_server,
)

pytestmark = pytest.mark.model  # the text is that of the default model

ROOT = Path(__file__).parents[2]
BODY = {"model": MODEL, "messages": HELLO}
ENDLESS = {**BODY, "ignore_eos": True}


@pytest.fixture
def sent(server, monkeypatch) -> list[dict[str, str]]:
    """The headers of every model call that reached the edge, in order."""
    seen: list[dict[str, str]] = []
    start = server.gateway.tracing.start

    def note(operation, headers, arrived):
        seen.append({**headers, "arrived": arrived})
        return start(operation, headers, arrived)

    monkeypatch.setattr(server.gateway.tracing, "start", note)
    return seen


def client(server: LiveServer, key: str = "gold", **policy: object) -> Client:
    return Client(server.url, server.keys[key], RetryPolicy(**policy))


def text(answer) -> str:
    return answer["choices"][0]["message"]["content"]


def streamed(chunks) -> str:
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


@contextmanager
def full(server: LiveServer) -> Iterator[None]:
    """The batch is full and so is the queue of `small`."""
    with server.occupied(8), server.occupied(1, "small", max_tokens=7):
        yield


# -- normal use -------------------------------------------------------------------------------


def test_answers_whole_and_streamed(server):
    with client(server) as mine:
        assert text(mine.chat(**BODY)) == TEXT
        answer = mine.completions(model=MODEL, prompt="hi", max_tokens=100)
        assert answer["choices"][0]["text"] == TEXT
        with mine.stream(**BODY) as chunks:
            assert streamed(chunks) == TEXT
        assert streamed(mine.stream(**BODY)) == TEXT


def test_answers_whole_and_streamed_to_asynchronous_code(server):
    async def use() -> list[str]:
        async with AsyncClient(server.url, server.keys["gold"]) as mine:
            whole = await asyncio.gather(*(mine.chat(**BODY) for _ in range(3)))
            async with await mine.stream(**BODY) as stream:
                chunks = [chunk async for chunk in stream]
            return [*map(text, whole), streamed(chunks)]

    assert asyncio.run(use()) == [TEXT] * 4


def test_threads_share_a_client(server):
    with client(server) as mine, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: text(mine.chat(**BODY)), range(16)))
    assert answers == [TEXT] * 16


def test_a_closed_client_says_so(server):
    mine = client(server)
    mine.close()
    mine.close()
    with pytest.raises(RuntimeError, match="closed"):
        mine.chat(**BODY)


def test_asking_for_a_stream_in_one_piece_is_a_mistake(server, sent):
    with client(server) as mine, pytest.raises(ValueError, match=r"stream\(\)"):
        mine.chat(**BODY, stream=True)
    assert sent == []


def test_leaving_a_stream_early_stops_the_work(server):
    server.say("so it goes ", endless=True, step_seconds=0.002)
    with client(server) as mine, scope(task="left-early"):
        with mine.stream(**ENDLESS) as chunks:
            next(chunks)
        eventually(lambda: ended(server, "left-early"))
    (end,) = ended(server, "left-early")
    assert end.cause is Cause.DISCONNECTED
    assert end.output_tokens < CONTEXT / 4


def ended(server: LiveServer, task: str) -> list[SequenceEnded]:
    events = server.events.snapshot()
    return [e for e in events if isinstance(e, SequenceEnded) and e.lineage.task == task]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("client", ["Paris.\n" * 3, "Paris.\n" * 2]), ("backpressure", ["6 answers\n"])],
)
def test_the_documents_examples_run(server, name, expected):
    server.say("Paris.")
    environment = {**os.environ, "WM_URL": server.url, "WM_GOLD_KEY": server.keys["gold"]}
    document = (ROOT / "docs" / f"{name}.md").read_text().replace("smollm2-135m", MODEL)
    examples = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    printed = [
        subprocess.run(
            [sys.executable, "-c", example],
            cwd=ROOT,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for example in examples
    ]
    assert printed == expected


# -- lineage and deadlines --------------------------------------------------------------------


def test_calls_belong_to_the_scope_they_are_made_in(server, sent):
    async def use() -> None:
        async with AsyncClient(server.url, server.keys["gold"]) as mine:
            with scope(task="whole", run="one"):
                await mine.chat(**BODY)
                with scope(attempt="first"):
                    await asyncio.gather(mine.chat(**BODY), mine.chat(**BODY))

    asyncio.run(use())
    with client(server) as mine, scope(task="other"):
        mine.chat(**BODY)
    names = ("x-task-id", "x-run-id", "x-attempt-id")
    assert [tuple(headers.get(name) for name in names) for headers in sent] == [
        ("whole", "one", None),
        ("whole", "one", "first"),
        ("whole", "one", "first"),
        ("other", None, None),
    ]


def test_nested_calls_inherit_the_end_and_a_shorter_one_binds_its_call_alone(server, monkeypatch):
    deadlines = []
    generate = server.engine.generate

    def note(request, *rest, **more):
        deadlines.append(request.deadline)
        return generate(request, *rest, **more)

    monkeypatch.setattr(server.engine, "generate", note)
    with client(server) as mine, scope(task="timed", within=600):
        mine.chat(**BODY, within=300)
        mine.chat(**BODY)
        mine.chat(**BODY, within=6000)
    nested, plain, longer = deadlines
    assert 250e9 < plain - nested < 350e9
    assert longer - plain < 1e9  # no call outlasts its task


def test_the_servers_own_word_on_a_missed_deadline_comes_through(server, sent):
    server.say("so it goes ", endless=True, step_seconds=0.02)
    with client(server) as mine, pytest.raises(RefusedError) as caught:
        mine.chat(**ENDLESS, within=0.5)
    assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")
    assert caught.value.given_up is GivenUp.FINAL
    assert len(sent) == 1


def test_a_silent_server_does_not_hold_the_call_past_its_end(server, sent):
    with client(server) as mine, server.model.held(), pytest.raises(DeadlineError):
        mine.chat(**BODY, within=0.3)
    assert len(sent) == 1


def test_a_stream_that_fails_in_the_middle_is_broken_and_not_just_short(server, sent):
    server.say("so it goes ", endless=True, step_seconds=0.002)
    with client(server) as mine, scope(task="broken"), mine.stream(**ENDLESS) as chunks:
        next(chunks)
        mine.cancel("broken")
        with pytest.raises(BrokenStreamError) as caught:
            list(chunks)
    assert caught.value.code == "cancelled"
    assert len(sent) == 1


# -- refusals ---------------------------------------------------------------------------------


def test_it_waits_as_told_and_succeeds(server, sent):
    """How long that is depends on what the server has seen; a short wait may be told again."""
    server.say("so it goes ", endless=True, step_seconds=0.01)
    patient = client(server, "small", sends=1000, burst=1000)
    with patient as mine, ThreadPoolExecutor(1) as pool:
        with full(server):
            sent.clear()
            answer = pool.submit(mine.chat, **BODY)
            eventually(lambda: refused(server, sent))
        assert answer.result()["usage"]["completion_tokens"] == 5
    first, *others = sent
    assert "x-stainless-retry-count" not in first
    refusals = refused(server, sent)
    assert len(others) == len(refusals)
    for count, (again, refusal) in enumerate(zip(others, refusals, strict=True), 1):
        assert again["x-task-id"] == first["x-task-id"]  # under which a place may be held
        assert again["x-stainless-retry-count"] == str(count)
        assert again["arrived"] - refusal.now >= (refusal.retry_after or 1_000_000_000)


def refused(server: LiveServer, sent: list[dict]) -> list[SequenceRefused]:
    events = server.events.snapshot()
    tasks = {headers.get("x-task-id") for headers in sent}
    return [e for e in events if isinstance(e, SequenceRefused) and e.lineage.task in tasks]


def test_nothing_is_sent_again_past_the_deadline(server, sent):
    server.say("so it goes ", endless=True, step_seconds=0.01)
    with client(server, "bronze") as mine, server.occupied(20):
        sent.clear()
        with pytest.raises(RefusedError) as caught:
            mine.chat(**BODY, within=0.9)  # told to come back in a second or more
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.retry_after >= 0.9
    assert caught.value.given_up is GivenUp.DEADLINE
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("key", "body", "status", "code"),
    [
        ("gold", {"n": 0}, 400, "invalid_value"),
        ("gold", {"tools": [{}]}, 400, "unsupported_parameter"),
        ("unknown", {}, 401, "invalid_api_key"),
        ("reader", {}, 403, "insufficient_scope"),
        ("gold", {"model": "none"}, 404, "model_not_found"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_final_is_sent_once_and_told_in_full(server, sent, key, body, status, code, stream):
    with client(server, key) as mine, pytest.raises(RefusedError) as caught:
        (mine.stream if stream else mine.chat)(**{**BODY, **body})
    error = caught.value
    assert (error.status, error.code, error.given_up) == (status, code, GivenUp.FINAL)
    assert error.param == next(iter(body), None)
    assert error.request_id.startswith("req-")
    assert len(sent) == 1


def test_a_cancelled_task_is_not_tried_again(server, sent):
    with client(server) as mine, scope(task="over-for-good"):
        mine.cancel("over-for-good")
        with pytest.raises(RefusedError) as caught:
            mine.chat(**BODY)
    assert (caught.value.status, caught.value.code) == (499, "cancelled")
    assert len(sent) == 1


def test_steady_overload_meets_no_storm(server, sent):
    server.say("so it goes ", endless=True, step_seconds=0.03)
    calls, at_once = 300, asyncio.Semaphore(50)

    async def one(mine: AsyncClient) -> RefusedError:
        async with at_once:
            with pytest.raises(RefusedError) as caught:
                await mine.chat(**BODY)
        return caught.value

    async def use() -> list[RefusedError]:
        policy = RetryPolicy(burst=0)
        async with AsyncClient(server.url, server.keys["small"], policy) as mine:
            return await asyncio.gather(*(one(mine) for _ in range(calls)))

    with full(server):
        sent.clear()
        errors = asyncio.run(use())
    assert {error.status for error in errors} == {429}
    assert all(error.retry_after for error in errors)
    assert calls < len(sent) <= 1.1 * calls
    assert {error.given_up for error in errors} <= {GivenUp.BUDGET, GivenUp.SENDS}


def test_a_server_that_is_not_there_is_tried_again_and_named(server):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    policy = RetryPolicy(sends=3, base=0.0)
    with (
        Client(f"http://127.0.0.1:{port}", "key", policy) as mine,
        pytest.raises(UnreachableError, match="ConnectError") as caught,
    ):
        mine.chat(**BODY)
    assert caught.value.given_up is GivenUp.SENDS


def test_a_connection_that_breaks_is_tried_again_with_the_time_that_is_left():
    requests = []

    def serve(listener: socket.socket) -> None:
        for answer in (b"", b'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"ok": 1}'):
            connection, _ = listener.accept()
            with connection:
                requests.append(connection.recv(65536).decode().lower())
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(serve, listener)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url, "key", RetryPolicy(base=0.0)) as mine:
            assert mine.chat(**BODY, within=60) == {"ok": 1}
        serving.result()
    first, second = (int(re.search(r"x-timeout-ms: (\d+)", sent)[1]) for sent in requests)
    assert second <= first <= 60_000
    assert "x-stainless-retry-count: 1" in requests[1]


# -- races ------------------------------------------------------------------------------------

LONG = "so it goes " * 150


def seeded(count: int) -> list[dict]:
    """Bodies of which the one with seed i is answered with the i-th text."""
    return [{**BODY, "seed": seed} for seed in range(count)]


def losers(server: LiveServer, task: str, count: int) -> list[SequenceEnded]:
    """How those ended that did not come to their own end."""

    def found() -> list[SequenceEnded]:
        return [end for end in ended(server, task) if end.cause is not Cause.STOP]

    eventually(lambda: len(found()) == count)
    return found()


def test_a_race_commits_the_winner_and_the_losers_stop_computing(server, sent):
    server.say(LONG, "yes", LONG, step_seconds=0.005)
    with client(server) as mine:
        won = mine.race(seeded(3))
        assert (won.index, text(won.answer)) == (1, "yes")
        (task,) = {headers["x-task-id"] for headers in sent}
        lost = losers(server, task, 2)
        server.assert_idle()
        with scope(task=task), pytest.raises(RefusedError) as caught:
            mine.chat(**BODY)
    assert caught.value.code == "lost_race"
    assert {end.cause for end in lost} == {Cause.LOST_RACE}
    whole = len(server.codec.encode(LONG, add_special=False))
    assert all(end.output_tokens < whole / 2 for end in lost)


def test_a_race_inside_a_task_cancels_its_losers_and_the_task_goes_on(server):
    server.say(LONG, "yes", LONG, step_seconds=0.005)
    with client(server) as mine, scope(task="race"):
        assert mine.race(seeded(3)).index == 1
        lost = losers(server, "race", 2)
        assert mine.race(seeded(2)).index == 1
        assert text(mine.chat(**BODY, seed=1)) == "yes"
    assert {end.cause for end in lost} == {Cause.CANCELLED}


def test_a_second_winner_is_refused(server):
    with client(server) as mine:
        mine.commit("won", "first")
        mine.commit("won", "first")
        with pytest.raises(RefusedError) as caught:
            mine.commit("won", "second")
    assert caught.value.status == 409
    assert caught.value.facts["committed"]["attempt"] == "first"
    assert caught.value.given_up is GivenUp.FINAL


def test_the_first_acceptable_answer_wins_whatever_becomes_of_the_others(server):
    server.say(LONG, "no", "in the end yes", step_seconds=0.005)
    wrong = {**BODY, "n": 0}
    with client(server) as mine, scope(task="picky"):
        won = mine.race([*seeded(3), wrong], lambda answer: "yes" in text(answer))
        lost = losers(server, "picky", 1)
    assert (won.index, text(won.answer)) == (2, "in the end yes")
    assert lost[0].cause is Cause.CANCELLED


def test_a_race_without_a_winner_says_how_all_ended(server):
    server.say("no", "nor this")
    with client(server) as mine, pytest.raises(NoneAcceptedError) as caught:
        mine.race([*seeded(2), {**BODY, "n": 0}], lambda answer: "yes" in text(answer))
    assert {text(answer) for answer in caught.value.answers} == {"no", "nor this"}
    assert [error.code for error in caught.value.errors] == ["invalid_value"]


def test_giving_up_a_race_stops_all_of_it(server):
    server.say("so it goes ", endless=True, step_seconds=0.002)

    async def use() -> None:
        async with AsyncClient(server.url, server.keys["gold"]) as mine:
            race = asyncio.create_task(mine.race([ENDLESS] * 3))
            await asyncio.to_thread(eventually, lambda: server.engine.status().load.running == 3)
            race.cancel()
            with pytest.raises(asyncio.CancelledError):
                await race
            await asyncio.to_thread(server.assert_idle)

    asyncio.run(use())


# -- promised places --------------------------------------------------------------------------


@pytest.fixture
def promising(codec, tmp_path) -> Iterator[LiveServer]:
    """One that holds places for those it sent away."""
    policy = replace(PLAIN, admission=replace(PLAIN.admission, promises=PromiseConfig()))
    with live_server(codec, tmp_path, policy=policy) as server:
        yield server


def test_a_return_claims_its_promised_place(promising):
    server = promising
    server.say("so it goes ", endless=True, step_seconds=0.01)
    with client(server, "small") as mine, ThreadPoolExecutor(1) as pool:
        for _ in range(20):
            mine.chat(**BODY)  # of which the engine learns what it needs to foretell anything
        with full(server):
            answer = pool.submit(mine.chat, **BODY)
            eventually(lambda: any(isinstance(e, PromiseBooked) for e in server.events.snapshot()))
        assert answer.result()["usage"]["completion_tokens"] == 5
        server.flush()
    assert any(isinstance(e, PromiseClaimed) for e in server.events.snapshot())
