"""A closed loop of HTTP callers, as cheap as can be: it shares the machine with what it measures.

Run as `python -m loadgen.http_load` with one JSON object on standard input: `port`, `path`,
`headers`, `body` (text), `clients`, `seconds` and `warm_up`. Each client keeps one connection and
sends the next request as soon as an answer is complete: the same but for the call's number, which
stands where the body says `NUMBER`. Prints a `Load` as JSON.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from math import nan
from typing import Any, cast

import uvloop

from loadgen.stats import quantile

LAST_CHUNK = b"0\r\n\r\n"
NUMBER = "<number>"  # as long as what is put in its place
DIGITS = len(NUMBER)


class Requests:
    """The bytes of one request after the other, none of them sent twice."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        body = order["body"].encode()
        lines = [f"POST {order['path']} HTTP/1.1", "host: bench", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in order["headers"].items()]
        self._parts = ("\r\n".join(lines).encode() + b"\r\n\r\n" + body).split(NUMBER.encode())
        self._numbers = count()

    def next(self) -> bytes:
        return f"{next(self._numbers):0{DIGITS}}".encode().join(self._parts)


@dataclass(frozen=True, slots=True)
class Load:
    """Answers in the measured part; latencies in milliseconds, until an answer is complete.

    `cpu` is in microseconds of the server's process for an answer, where somebody looked.
    """

    answers: int
    all_answers: int  # with those of the warm-up
    rate: float  # a second
    p50: float
    p99: float
    cpu: float = nan


class _Caller(asyncio.Protocol):
    """One connection. It notes when each answer was complete and how long that took."""

    def __init__(self, requests: Requests, done: list[tuple[float, float]]) -> None:
        self._requests = requests
        self._done = done
        self._pending = bytearray()
        self._left = -1  # bytes to the end of the answer, where it has a length; -1 is unknown
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not derived from it
        self._send()

    def data_received(self, data: bytes) -> None:
        self._pending += data
        if not self._head_read and not self._read_head():
            return
        complete = (
            self._pending.endswith(LAST_CHUNK)
            if self._left < 0
            else len(self._pending) >= self._left
        )
        if complete:
            now = time.perf_counter()
            self._done.append((now, now - self._sent))
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.failed.done():
            self.failed.set_exception(ConnectionError(f"the server hung up: {error}"))

    def close(self) -> None:
        self.failed.cancel()
        self._transport.close()

    def _send(self) -> None:
        self._pending.clear()
        self._head_read = False
        self._left = -1
        request = self._requests.next()
        self._sent = time.perf_counter()
        self._transport.write(request)

    def _read_head(self) -> bool:
        end = self._pending.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._pending[:end]).lower()
        if not head.startswith(b"http/1.1 200 "):
            self.failed.set_exception(
                ConnectionError(f"the server answered {self._pending[:300].decode()}")
            )
            self._transport.close()
            return False
        for line in head.split(b"\r\n"):
            if line.startswith(b"content-length:"):
                self._left = end + 4 + int(line.split(b":")[1])
        self._head_read = True
        return True


async def run(order: dict[str, Any]) -> Load:
    """Call until the time is over. ConnectionError when an answer is not a 200."""
    requests, done = Requests(order), list[tuple[float, float]]()
    connect = partial(
        asyncio.get_running_loop().create_connection,
        lambda: _Caller(requests, done),
        "127.0.0.1",
        order["port"],
    )
    callers = [(await connect())[1] for _ in range(order["clients"])]
    await asyncio.sleep(order["warm_up"])
    began = time.perf_counter()
    over, _ = await asyncio.wait(
        [c.failed for c in callers], timeout=order["seconds"], return_when=asyncio.FIRST_COMPLETED
    )
    ended = time.perf_counter()
    for failed in over:
        failed.result()
    for caller in callers:
        caller.close()
    times = sorted(1e3 * took for at, took in done if began <= at <= ended)
    if not times:
        raise ConnectionError(f"no answer within {order['seconds']:g} s")
    return Load(
        answers=len(times),
        all_answers=len(done),
        rate=len(times) / (ended - began),
        p50=quantile(times, 0.5),
        p99=quantile(times, 0.99),
    )


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(asdict(runner.run(run(json.load(sys.stdin))))))
