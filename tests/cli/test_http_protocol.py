"""What a connection may cost before its request reaches the application, over real sockets."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.body import read_body
from gateway.http_protocol import ConnectionLimits, bounded
from gateway.listener import bind
from gateway.server import HttpServer

LIMITS = ConnectionLimits(
    max_connections=3, max_header_bytes=4096, head_timeout=0.3, stall_timeout=1.0
)
LARGE = 32 << 20
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once, whatever the body; `/wait` only when the caller has hung up.

    `/begun` has begun to by then, `/late` takes its time, `/echo` answers with the body
    and `/large` with more than a socket holds.
    """
    body = b"ok"
    if scope["path"] == "/echo":
        body = await read_body({}, receive, 1000, 5)
    if scope["path"] == "/large":
        body = b"x" * LARGE
    start = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-length", str(len(body)).encode())],
    }
    if scope["path"] == "/begun":
        await send(start)
    if scope["path"] == "/late":
        await asyncio.sleep(0.5)
    while scope["path"] in {"/wait", "/begun"} and (await receive())["type"] != "http.disconnect":
        pass
    if scope["path"] != "/begun":
        await send(start)
    await send({"type": "http.response.body", "body": body})


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> bytes:
        """One whole answer of the application."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        return head + await self.reader.readexactly(2)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        return await self.reader.read()


def serve(scenario: Callable[[Callable[[], Awaitable[Caller]]], Awaitable[None]]) -> None:
    async def main() -> None:
        with bind("127.0.0.1", 0) as listener:
            config = uvicorn.Config(app, http=bounded(LIMITS), lifespan="off", log_config=None)
            server = HttpServer(config)
            serving = asyncio.create_task(server.serve([listener]))
            address = listener.getsockname()
            callers: list[Caller] = []

            async def call() -> Caller:
                callers.append(Caller(*await asyncio.open_connection(*address)))
                return callers[-1]

            try:
                await scenario(call)
            finally:
                for caller in callers:
                    caller.writer.close()
                server.should_exit = True
                await serving

    asyncio.run(asyncio.wait_for(main(), 20))


def refusal(answer: bytes) -> tuple[int, str, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), orjson.loads(body)["error"]["code"], head


def test_requests_pass_one_after_another_on_one_connection() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        caller = await call()
        for _ in range(3):
            caller.send(REQUEST)
            assert (await caller.answer()).startswith(b"HTTP/1.1 200")
        caller.send(REQUEST[:10])  # a head in two pieces is fine
        await asyncio.sleep(0.05)
        caller.send(REQUEST[10:])
        assert (await caller.answer()).startswith(b"HTTP/1.1 200")

    serve(scenario)


def test_a_head_that_is_too_large_gets_431() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        for piece in (b"x-long: " + b"a" * 5000, b"".join(b"x%d: y\r\n" % n for n in range(1000))):
            caller = await call()
            caller.send(REQUEST[:-2] + piece)
            assert refusal(await caller.rest())[:2] == (431, "headers_too_large")

    serve(scenario)


def test_a_head_that_is_too_large_gets_431_in_one_piece_too() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        caller = await call()
        caller.send(REQUEST[:-2] + b"x-long: " + b"a" * 5000 + b"\r\n\r\n" + REQUEST)
        assert refusal(await caller.rest())[:2] == (431, "headers_too_large")
        large = await call()  # of which the head is small
        large.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n" + b"x" * 9000)
        assert (await large.answer()).startswith(b"HTTP/1.1 200")

    serve(scenario)


def test_a_head_that_comes_too_slowly_gets_408() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        first = await call()
        first.send(REQUEST[:20])
        assert refusal(await first.rest())[:2] == (408, "head_timeout")

        again = await call()
        again.send(REQUEST)
        await again.answer()
        again.send(REQUEST[:20])  # the second head on a connection has its time too
        assert refusal(await again.rest())[:2] == (408, "head_timeout")

    serve(scenario)


def test_a_connection_that_asks_nothing_is_closed_without_an_answer() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        assert await (await call()).rest() == b""

    serve(scenario)


def test_too_many_connections_get_503_and_room_comes_back() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        held = [await call() for _ in range(3)]
        status, code, head = refusal(await (await call()).rest())
        assert (status, code) == (503, "saturated")
        assert b"retry-after: 1" in head.split(b"\r\n")
        held[0].writer.close()
        await held[0].writer.wait_closed()
        while True:  # the server notices the end a moment later
            caller = await call()
            caller.send(REQUEST)
            if b" 200 " in await caller.reader.readline():
                break

    serve(scenario)


def test_a_body_that_follows_its_answer_is_thrown_away_and_gets_no_second_one() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        caller = await call()
        caller.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 20000\r\n\r\n")
        assert (await caller.answer()).startswith(b"HTTP/1.1 200")
        for _ in range(20):
            caller.send(b"x" * 1000)
            await asyncio.sleep(0.005)
        caller.send(REQUEST)
        assert (await caller.answer()).startswith(b"HTTP/1.1 200")

    serve(scenario)


def test_a_body_that_goes_on_long_after_its_answer_is_cut_off() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        caller = await call()
        caller.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 20000\r\n\r\n")
        assert (await caller.answer()).startswith(b"HTTP/1.1 200")
        rest = asyncio.create_task(caller.rest())
        while not rest.done():
            caller.send(b"x")
            await asyncio.sleep(0.05)
        assert await rest == b""

    serve(scenario)


def test_a_head_beside_an_answer_is_bounded_too_and_cuts_the_connection() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        caller = await call()
        caller.send(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0.05)
        caller.send(REQUEST[:-2] + b"x-long: " + b"a" * 5000)
        assert await caller.rest() == b""

    serve(scenario)


def test_what_is_no_http_gets_400_in_the_shape_of_other_errors() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        for garbage in (b"\0 nothing\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n"):
            caller = await call()
            caller.send(garbage)
            status, code, head = refusal(await caller.rest())
            assert (status, code) == (400, "malformed_request")
            assert b"content-type: application/json" in head.split(b"\r\n")

    serve(scenario)


def test_a_target_that_is_no_path_gets_400_and_is_taken_for_nobody_elses() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        for target in (b"CONNECT x:443", b"GET http://x", b"GET http://x?y", b"GET http://"):
            bad = target + b" HTTP/1.1\r\nhost: x\r\n\r\n"
            caller = await call()
            caller.send(bad)
            assert refusal(await caller.rest())[:2] == (400, "malformed_request")
            later = await call()
            later.send(REQUEST)
            await later.answer()
            later.send(bad)
            assert refusal(await later.rest())[:2] == (400, "malformed_request")
            beside = await call()
            beside.send(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n" + bad)
            assert await beside.rest() == b""

    serve(scenario)


def test_blanks_around_a_headers_value_are_no_part_of_it() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        caller = await call()
        head = b"POST /echo HTTP/1.1\r\nhost: x\r\nexpect:\t 100-continue \t\r\n"
        caller.send(head + b"content-length: 5\r\n\r\n")
        assert (await caller.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        caller.send(b"hello")
        assert (await caller.reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 ")

    serve(scenario)


def test_what_is_no_body_gets_400_once() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        chunked = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        caller = await call()
        caller.send(chunked % b"/wait" + b"zz\r\n")
        assert refusal(await caller.rest())[:2] == (400, "malformed_request")

        answered = await call()  # the application did not wait for it
        answered.send(chunked % b"/")
        assert (await answered.answer()).startswith(b"HTTP/1.1 200")
        answered.send(b"zz\r\n")
        assert await answered.rest() == b""

    serve(scenario)


def test_garbage_beside_an_answer_never_becomes_a_part_of_it() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        for path in (b"/wait", b"/begun"):
            caller = await call()
            caller.send(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path)
            await asyncio.sleep(0.05)
            caller.send(b"\0 nothing\r\n\r\n")
            assert b" 400 " not in await caller.rest()

    serve(scenario)


def test_who_hangs_up_with_more_requests_sent_ends_the_one_that_is_answered() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        caller = await call()
        caller.send(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n" + REQUEST)
        await asyncio.sleep(0.05)  # the server ends once its handlers have

    serve(scenario)


def test_who_hangs_up_after_a_second_request_ends_the_first() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        callers = []
        for second in (REQUEST, REQUEST[:20], b"POST / HTTP/1.1\r\ncontent-length: 9000\r\n\r\n"):
            callers.append(await call())
            callers[-1].send(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
            await asyncio.sleep(0.05)
            callers[-1].send(second)
            await asyncio.sleep(0.05)
        assert len(answers_begun()) == 3
        for caller in callers:
            caller.writer.close()
        await asyncio.gather(*answers_begun())

    serve(scenario)


def test_who_reads_nothing_is_cut_off_though_more_was_asked() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        caller = await call()
        caller.send(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
        await caller.reader.readuntil(b"\r\n\r\n")
        assert len(answers_begun()) == 1  # the second waits until there is room for more
        await asyncio.gather(*answers_begun())
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await caller.reader.readexactly(LARGE)

    serve(scenario)


def test_who_reads_slowly_is_not_cut_off() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        caller = await call()
        caller.send(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
        for _ in range(2):
            await caller.reader.readuntil(b"\r\n\r\n")
            for _ in range(16):
                await caller.reader.readexactly(LARGE // 16)
                await asyncio.sleep(0.1)

    serve(scenario)


def test_of_many_requests_sent_ahead_few_are_read_before_their_turn() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        caller = await call()
        caller.send(b"GET /late HTTP/1.1\r\nhost: x\r\n\r\n")
        caller.send(REQUEST * 20_000)
        for _ in range(100):
            assert (await caller.answer()).startswith(b"HTTP/1.1 200")
            assert 1 < cycles() < 300
        caller.writer.transport.abort()

    serve(scenario)


def test_requests_sent_ahead_are_answered_one_by_one_however_they_are_cut() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        caller = await call()
        expected = []
        for number in range(1500):
            body = b"%d" % number * (1 + number % 40)
            expected.append(body)
            caller.send(b"POST /echo HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        for body in expected:
            head = await caller.reader.readuntil(b"\r\n\r\n")
            assert b"content-length: %d\r\n" % len(body) in head
            assert await caller.reader.readexactly(len(body)) == body

    serve(scenario)


def cycles() -> int:
    """Requests that were read and are still remembered."""
    return sum(isinstance(each, RequestResponseCycle) for each in gc.get_objects())


def answers_begun() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if "run_asgi" in repr(task.get_coro())]


def test_who_offers_another_protocol_is_answered_in_this_one() -> None:
    async def scenario(call: Callable[[], Awaitable[Caller]]) -> None:
        offer = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA\r\n"
        framings = (
            (b"GET", b"", [], b""),
            (b"POST", b"content-length: 5\r\n", [b"he", b"llo"], b"hello"),
            (b"POST", b"transfer-encoding: chunked\r\n", [b"5\r\nhello\r\n0\r\n\r\n"], b"hello"),
        )
        caller = await call()
        for method, framing, pieces, body in framings:
            head = method + b" /echo HTTP/1.1\r\nhost: x\r\n" + offer + framing + b"\r\n"
            for whole in (True, False):
                for piece in [b"".join([head, *pieces])] if whole else [head, *pieces]:
                    caller.send(piece)
                    await asyncio.sleep(0.02)
                answer = await caller.reader.readuntil(b"\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 200")
                assert await caller.reader.readexactly(len(body)) == body
        caller.send(REQUEST + REQUEST)
        for _ in range(2):
            assert (await caller.answer()).startswith(b"HTTP/1.1 200")

    serve(scenario)
