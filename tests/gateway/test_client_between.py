"""`gateway.client` and what is no server of ours, but stands between, say a proxy."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from gateway.client import BrokenStreamError, Client, GivenUp, RetryPolicy, UnreachableError

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@contextmanager
def standing_in(*answers: bytes) -> Iterator[str]:
    """The URL of something that gives one of `answers` to each connection, whatever it asks."""

    def serve(listener: socket.socket) -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(20)
        serving = pool.submit(serve, listener)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving.result()


@pytest.mark.parametrize(
    "body", [b"<html>Log in", b"[]", b"\xff", b"null", b"gzip\r\n\r\nit is not"], ids=repr
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


@pytest.mark.parametrize("event", [b"data: <html>\n\n", b"data: \xff\n\n"], ids=repr)
def test_a_stream_of_something_else_is_broken(event):
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n"
    with standing_in(head + event) as url, Client(url, "key") as mine:
        stream = mine.stream(**BODY)
        with pytest.raises(BrokenStreamError):
            list(stream)
