"""`gateway.client` and what is no server of ours, but stands between, say a proxy."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from gateway.client import (
    BrokenStreamError,
    Client,
    DeadlineError,
    GivenUp,
    RefusedError,
    RetryPolicy,
    UnreachableError,
)
from tests.gateway.live import read

EVENTS = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n"
DONE = b"\n\ndata: [DONE]\n\n"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@contextmanager
def standing_in(*answers: bytes, pause: float = 0.0) -> Iterator[str]:
    """The URL of something that gives one of `answers` to each connection, whatever it asks.

    Its lines come one by one, `pause` seconds apart.
    """

    def serve(listener: socket.socket) -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection, suppress(BrokenPipeError, ConnectionResetError):
                read(connection)  # in full: what is left unread makes closing it an error
                for line in answer.splitlines(keepends=True) if pause else [answer]:
                    connection.sendall(line)
                    time.sleep(pause)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(20)
        serving = pool.submit(serve, listener)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving.result()


@pytest.mark.parametrize(
    "body",
    [b"<html>Log in", b"[]", b"\xff", b"null", b"gzip\r\n\r\nit is not", b"[" * 9999],
    ids=lambda body: repr(body[:20]),
)
def test_what_stands_between_and_answers_in_its_own_form_is_no_answer(body):
    kind = b"content-encoding: " if body.startswith(b"gzip") else b"x-from: proxy\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\n" + kind + body
    good = b'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"ok": 1}'
    with (
        standing_in(answer, answer, good) as url,
        Client(url, "key", RetryPolicy(sends=2, base=0.0)) as mine,
    ):
        with pytest.raises(UnreachableError) as caught:
            mine.chat(**BODY)
        assert caught.value.given_up is GivenUp.SENDS
        assert mine.chat(**BODY) == {"ok": 1}


@pytest.mark.parametrize(
    "event",
    [b"<html>", b"\xff", b"5", b"null", b'["error"]', b'"error"', b"[" * 9999],
    ids=lambda event: repr(event[:20]),
)
def test_a_stream_of_something_else_is_broken(event):
    with standing_in(EVENTS + b"data: " + event + DONE) as url, Client(url, "key") as mine:
        stream = mine.stream(**BODY)
        with pytest.raises(BrokenStreamError):
            list(stream)


@pytest.mark.parametrize("error", [b'"out of coal"', b'["out of coal"]'], ids=repr)
def test_an_error_that_is_no_object_is_told_as_it_came(error):
    with (
        standing_in(EVENTS + b'data: {"error": ' + error + b"}" + DONE) as url,
        Client(url, "key") as mine,
        pytest.raises(BrokenStreamError, match="out of coal"),
    ):
        list(mine.stream(**BODY))


def test_an_error_that_is_none_breaks_nothing():
    with standing_in(EVENTS + b'data: {"error": null}' + DONE) as url, Client(url, "key") as mine:
        assert list(mine.stream(**BODY)) == [{"error": None}]


def test_a_stream_is_no_answer_to_who_asked_for_one_and_the_other_way_round():
    good = b'HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\n{"ok": 1}'
    stream = EVENTS + b'data: {"ok": 1}' + DONE
    with (
        standing_in(stream, good, good, stream) as url,
        Client(url, "key", RetryPolicy(base=0.0)) as mine,
    ):
        assert mine.chat(**BODY) == {"ok": 1}
        assert list(mine.stream(**BODY)) == [{"ok": 1}]


def test_what_came_in_time_is_handed_out_to_a_caller_who_comes_late():
    events = b'data: {"a": 1}\n\ndata: {"a": 2}\n\ndata: {"a": 3}' + DONE
    with (
        standing_in(EVENTS + events, pause=0.02) as url,
        Client(url, "key") as mine,
        mine.stream(**BODY, within=1) as stream,
    ):
        first = next(stream)
        time.sleep(2.5)
        assert [first, *stream] == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_a_stream_that_trickles_past_its_end_is_ended():
    with (
        standing_in(EVENTS + b": still here\n" * 100, pause=0.02) as url,
        Client(url, "key") as mine,
        mine.stream(**BODY, within=0.2) as stream,
        pytest.raises(DeadlineError),
    ):
        list(stream)


def answered(status: str, body: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def test_a_race_keeps_its_answer_when_the_commit_does_not_come_through():
    away = answered("503 Service Unavailable", '{"error": {"code": "server_draining"}}')
    with (
        standing_in(answered("200 OK", '{"ok": 1}'), away, away) as url,
        Client(url, "key", RetryPolicy(sends=2, base=0.0)) as mine,
    ):
        won = mine.race([BODY])
    assert (won.index, won.answer) == (0, {"ok": 1})
    assert isinstance(won.uncommitted, RefusedError)
    assert won.uncommitted.code == "server_draining"


def test_a_race_whose_task_another_has_won_is_lost():
    lost = answered("409 Conflict", '{"error": {"code": "commit_conflict"}}')
    with (
        standing_in(answered("200 OK", '{"ok": 1}'), lost) as url,
        Client(url, "key") as mine,
        pytest.raises(RefusedError) as caught,
    ):
        mine.race([BODY])
    assert caught.value.code == "commit_conflict"
