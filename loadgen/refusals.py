"""Whether refused callers are told the truth: a live server beyond capacity, two ways to return.

Two tenants of weights 3 and 1 send `load` times what each can be served, open loop, to a server
with short queues. Whoever is refused comes back: in one run when told to, as the same task and with
a retry count, as stock clients do that get a Retry-After; in the other by the backoff that the same
clients use without one, and as somebody new.
"""

import asyncio
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import httpx
import numpy as np

from loadgen.arrivals import Phase, arrival_times
from loadgen.limits import Finding
from loadgen.server import Server, serving

CONFIG = "[kernel]\nmax_running = 32\nmax_queued_requests = 48\ntenant_queued_requests = 32\n"
WAYS = {"when told": True, "by backoff": False}  # whether callers listen
WEIGHTS = {"gold": 3, "bronze": 1}
PROMPT, OUTPUT = (32, 128), (16, 112)  # tokens
CROWD = 48  # callers of the closed loop that shows the capacity; all may wait at first
MOST_TRIES = 8
FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 8.0  # seconds, of the stock OpenAI client
REFUSALS = (429, 503)  # the queue of the tenant is full, or that of the server
KEPT = 95.0  # percent of the places held for returns that are to be used
HEADER = (
    *("returning", "calls", "refused at first", "told a time", "taken in on first return"),
    *("requests an answer", "answered", "refusal to answer"),
)

Report = Callable[[str], None]


@dataclass(slots=True)
class Way:
    """What became of the calls of one run, as counts; `places` are those that were held."""

    name: str
    as_told: bool
    calls: int = 0
    refused: int = 0
    told: int = 0  # of the refused, a time
    returned: int = 0
    taken_in: int = 0  # of those who returned, at their first return
    sent: int = 0
    answered: int = 0
    waits: list[float] = field(default_factory=list)  # seconds from refusal to answer
    places: dict[str, float] = field(default_factory=dict)


def measure(
    load: float, seconds: float, probe: int, report: Report, ways: Sequence[str] = tuple(WAYS)
) -> list[Way]:
    """Those of WAYS one after the other, on a server of its own."""
    runs = [Way(name, as_told=WAYS[name]) for name in ways]
    with serving(CONFIG) as server:
        asyncio.run(_measure(server, load, seconds, probe, runs, report))
    return runs


async def _measure(
    server: Server, load: float, seconds: float, probe: int, ways: list[Way], report: Report
) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as client:
        report(f"looking at {probe} calls how many are served a second")
        rate = load * await _capacity(client, server, probe)
        for way in ways:
            report(f"{rate:.2f} calls a second for {seconds:g} s, coming back {way.name}")
            before = await _places(client)
            await _send(client, server, rate, seconds, way)
            after = await _places(client)
            way.places = {outcome: after[outcome] - before.get(outcome, 0) for outcome in after}


async def _capacity(client: httpx.AsyncClient, server: Server, calls: int) -> float:
    """Calls a second that a closed loop gets answered, once each caller had an answer."""
    ended: list[float] = []
    enough = asyncio.Event()
    lengths = random.Random(0)

    async def call_forever(key: str) -> None:
        while True:
            (await _post(client, key, lengths, {})).raise_for_status()
            ended.append(time.perf_counter())
            if len(ended) > CROWD + calls:
                enough.set()

    keys = [server.keys[tenant] for tenant in WEIGHTS for _ in range(CROWD // len(WEIGHTS))]
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(call_forever(key)) for key in keys]
    tasks.append(asyncio.create_task(enough.wait()))
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()  # a caller only ends by failing
    return calls / (ended[CROWD + calls] - ended[CROWD])


async def _send(
    client: httpx.AsyncClient, server: Server, rate: float, seconds: float, way: Way
) -> None:
    """All calls of a run, to their ends."""
    calls = []
    for number, (tenant, weight) in enumerate(WEIGHTS.items()):
        share = rate * weight / sum(WEIGHTS.values())
        times = arrival_times((Phase(share),), seconds, 1.0, np.random.default_rng(number))
        calls += [(at, tenant) for at in times]
    callers = [
        asyncio.create_task(_call(client, server.keys[tenant], at, number, way))
        for number, (at, tenant) in enumerate(calls)
    ]
    try:
        await asyncio.gather(*callers)
    finally:
        for caller in callers:
            caller.cancel()


async def _call(client: httpx.AsyncClient, key: str, at: float, number: int, way: Way) -> None:
    """One call that begins in `at` seconds, until it is answered or tried often enough."""
    await asyncio.sleep(at)
    way.calls += 1
    lengths, refused_at = random.Random(number), 0.0
    for tries in range(MOST_TRIES):
        headers = {}
        if way.as_told:
            headers = {
                "x-task-id": f"call-{number}",
                "x-stainless-retry-count": str(tries),
            }
        answer = await _post(client, key, lengths, headers)
        way.sent += 1
        if tries == 1:
            way.returned += 1
            way.taken_in += answer.status_code not in REFUSALS
        if answer.status_code not in REFUSALS:
            answer.raise_for_status()
            way.answered += 1
            if tries:
                way.waits.append(time.perf_counter() - refused_at)
            return
        if tries == 0:
            refused_at = time.perf_counter()
            way.refused += 1
        told = answer.headers.get("retry-after-ms")
        way.told += tries == 0 and told is not None
        await asyncio.sleep(pause(tries, told if way.as_told else None))


def pause(tries: int, told: str | None) -> float:
    """Seconds until the next try: what the server said, or else the stock clients' backoff."""
    if told is not None:
        return int(told) / 1000
    backoff: float = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2**tries)
    return backoff * random.uniform(0.75, 1.0)


async def _post(
    client: httpx.AsyncClient, key: str, lengths: random.Random, headers: dict[str, str]
) -> httpx.Response:
    body = {
        "model": "smollm2-135m",
        "prompt": [random.randrange(1000, 40_000) for _ in range(lengths.randint(*PROMPT))],
        "max_tokens": lengths.randint(*OUTPUT),
        "ignore_eos": True,
        "temperature": 0,
    }
    headers = {"authorization": f"Bearer {key}", **headers}
    return await client.post("/v1/completions", json=body, headers=headers)


async def _places(client: httpx.AsyncClient) -> dict[str, float]:
    """Places held for refused callers so far, by what became of them."""
    text = (await client.get("/metrics")).text
    pattern = r'^watermaster_promises_total\{.*outcome="(\w+)".*\} (\S+)$'
    return {outcome: float(value) for outcome, value in re.findall(pattern, text, re.MULTILINE)}


def rows(ways: Sequence[Way]) -> list[tuple[str, ...]]:
    """One row a way, for a table under HEADER."""
    return [
        (
            *(way.name, str(way.calls), _percent(way.refused, way.calls)),
            *(_percent(way.told, way.refused), _percent(way.taken_in, way.returned)),
            f"{way.sent / max(1, way.answered):.2f}",
            _percent(way.answered, way.calls),
            f"{median(way.waits):.1f} s" if way.waits else "-",
        )
        for way in ways
    ]


def findings(ways: Sequence[Way]) -> list[Finding]:
    """Of the places held for callers who come back when told, how many were used."""
    places = ways[0].places
    used, lapsed = places.get("claimed", 0), places.get("lapsed", 0)
    share = 100 * used / (used + lapsed) if used + lapsed else 0.0
    note = f"{used:.0f} of {used + lapsed:.0f}"
    return [Finding("places held that were taken", share, KEPT, "%", "least", note)]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "-"
