"""Streams completions from any OpenAI-compatible server and times what arrives.

As cheap as can be: it shares the machine with the servers that it compares.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT = 600.0  # seconds for one answer


class PeerError(Exception):
    """A server did not answer as an OpenAI-compatible one; one sentence."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server under its base URL, which ends with the API's version, and what it calls its

    model.
    """

    name: str
    url: str
    model: str
    key: str = "none"


@dataclass(frozen=True, slots=True)
class Call:
    """`prompt` are token ids; exactly `output` tokens are asked for."""

    prompt: tuple[int, ...]
    output: int


@dataclass(frozen=True, slots=True)
class Answer:
    """`first` is seconds to the first event with a choice, `output` what the server says."""

    first: float
    output: int


async def find_model(url: str, key: str) -> str:
    """The first model that the server lists."""
    reader, writer = await _send(url + "/models", key, "GET", b"")
    try:
        size = await _head(reader, url)
        body = b"".join([part async for part in _body(reader, size)])
    finally:
        writer.close()
    listed = json.loads(body).get("data") or []
    if not listed:
        raise PeerError(f"{url} lists no model")
    return str(listed[0]["id"])


async def answer(peer: Peer, call: Call) -> Answer:
    """Send one call and read its stream to the end. Raises PeerError."""
    body = {
        "model": peer.model,
        "prompt": call.prompt,
        "max_tokens": call.output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    async with asyncio.timeout(TIMEOUT):
        reader, writer = await _send(
            peer.url + "/completions", peer.key, "POST", json.dumps(body).encode()
        )
        try:
            first, output = 0.0, 0
            async for event in _events(reader, peer.url):
                if event.get("choices") and not first:
                    first = time.perf_counter() - began
                output = (event.get("usage") or {}).get("completion_tokens", output)
        finally:
            writer.close()
    if output != call.output:
        raise PeerError(f"{peer.name} answered {output} tokens where {call.output} were asked for")
    return Answer(first, output)


async def all_at_once(
    peer: Peer, calls: Sequence[Call], together: int
) -> tuple[list[Answer], float]:
    """The answers of `calls`, at most `together` at a time, and the seconds all took."""
    places = asyncio.Semaphore(together)

    async def one(call: Call) -> Answer:
        async with places:
            return await answer(peer, call)

    began = time.perf_counter()
    answers = await asyncio.gather(*map(one, calls))
    return answers, time.perf_counter() - began


async def _send(
    url: str, key: str, method: str, body: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    try:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    except OSError as error:
        raise PeerError(f"{url} cannot be reached: {error}") from None
    lines = (
        f"{method} {parts.path} HTTP/1.1",
        f"host: {parts.netloc}",
        f"authorization: Bearer {key}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    )
    head = "".join(f"{line}\r\n" for line in lines) + "\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def _head(reader: asyncio.StreamReader, url: str) -> int | None:
    """Read the head of an answer: the length of what follows, None where it comes in chunks."""
    status = await reader.readline()
    headers = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip().lower()
    if status.split(b" ")[1:2] != [b"200"]:
        said = (await reader.read(500)).decode(errors="replace")
        raise PeerError(f"{url} answered {status.decode().strip()}: {said}")
    return (
        None if headers.get(b"transfer-encoding") == b"chunked" else int(headers[b"content-length"])
    )


async def _body(reader: asyncio.StreamReader, size: int | None) -> AsyncIterator[bytes]:
    if size is not None:
        yield await reader.readexactly(size)
        return
    while length := int(await reader.readline(), 16):
        yield await reader.readexactly(length)
        await reader.readexactly(2)


async def _events(reader: asyncio.StreamReader, url: str) -> AsyncIterator[dict[str, Any]]:
    pending = b""
    async for part in _body(reader, await _head(reader, url)):
        *lines, pending = (pending + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and not line.startswith(b"data: [DONE]"):
                event: dict[str, Any] = json.loads(line[5:])
                if "error" in event:
                    raise PeerError(f"{url} ended a stream with {event['error']}")
                yield event
