"""One tenant's few calls beside a flood of another's: on our server and on others, in turns.

The flood is a closed loop of more callers than any of the servers runs at a time. Others know no
tenants: their visitor waits in the line that the flood has made.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median

import uvloop

from loadgen.limits import between
from loadgen.peer_client import Answer, Call, Peer, answer, find_model
from loadgen.peers import OURS, Load
from loadgen.server import serving

VISITOR, FLOODER = "bronze", "gold"  # weights 1 and 3: the visitor is the lighter one
CALL = Load("visitor", 1, 1, (64, 64), (32, 32), rate=False)
FLOOD = Load("flood", 1, 1, (64, 256), (16, 256), rate=True)
PAUSE = 1.0  # seconds between an answer to the visitor and its next call
ALONE = 5  # calls of the visitor before the flood
CALM = 3.0  # seconds for a server to notice that the flood has hung up
HEADER = ("server", "TTFT alone", "TTFT beside the flood", "whole answer", "flood's tokens/s")

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Flood:
    """`callers` with one call each at a time; the visitor calls for `seconds` after `warm_up`."""

    callers: int
    warm_up: float
    seconds: float


@dataclass(slots=True)
class Visits:
    """What one server did: seconds to the visitor's first tokens and for whole answers."""

    peer: str
    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    flood_rates: list[float] = field(default_factory=list)  # output tokens a second, one a run


def measure(
    urls: dict[str, str], flood: Flood, repeat: int, ours: str, report: Report
) -> list[Visits]:
    """Flood each server in turns, `repeat` times; `urls` and `ours` as of `peers.measure`.

    Raises PeerError.
    """
    with serving(ours) as server:
        base = f"{server.url}/v1"
        found = [(OURS, base, server.keys[VISITOR], server.keys[FLOODER])]
        found += [(name, url.rstrip("/"), "none", "none") for name, url in urls.items()]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_measure(found, flood, repeat, report))


async def _measure(
    found: list[tuple[str, str, str, str]], flood: Flood, repeat: int, report: Report
) -> list[Visits]:
    visits = [Visits(name) for name, *_ in found]
    for number in range(1, repeat + 1):
        for visit, (name, url, visitor_key, flooder_key) in zip(visits, found, strict=True):
            model = await find_model(url, visitor_key)
            visitor, flooder = (Peer(name, url, model, k) for k in (visitor_key, flooder_key))
            report(f"{name}, {number} of {repeat}: the visitor alone")
            visit.alone += [(await _visit(visitor)).first for _ in range(ALONE)]
            report(f"{name}, {number} of {repeat}: beside a flood of {flood.callers}")
            await _flooded(visit, visitor, flooder, flood)
            await asyncio.sleep(CALM)
    return visits


async def _flooded(visit: Visits, visitor: Peer, flooder: Peer, flood: Flood) -> None:
    answers: list[Answer] = []
    calls = _calls(FLOOD)
    callers = [
        asyncio.create_task(_call_forever(flooder, calls, answers)) for _ in range(flood.callers)
    ]
    visiting = asyncio.create_task(_visit_for(visitor, flood, answers))
    try:
        await asyncio.wait((visiting, *callers), return_when=asyncio.FIRST_COMPLETED)
        for caller in callers:
            if caller.done():
                caller.result()  # it only ends by failing
        beside, whole, rate = await visiting
    finally:
        for task in (visiting, *callers):
            task.cancel()
        await asyncio.gather(visiting, *callers, return_exceptions=True)
    visit.beside += beside
    visit.whole += whole
    visit.flood_rates.append(rate)


async def _visit_for(
    visitor: Peer, flood: Flood, answers: list[Answer]
) -> tuple[list[float], list[float], float]:
    """Seconds to the first token and in all, call by call, and the flood's tokens a second."""
    await asyncio.sleep(flood.warm_up)
    before, began = len(answers), time.perf_counter()
    beside: list[float] = []
    whole: list[float] = []
    while not beside or time.perf_counter() - began < flood.seconds:
        sent = time.perf_counter()
        beside.append((await _visit(visitor)).first)
        whole.append(time.perf_counter() - sent)
        await asyncio.sleep(PAUSE)
    output = sum(one.output for one in answers[before:])
    return beside, whole, output / (time.perf_counter() - began)


async def _visit(visitor: Peer) -> Answer:
    return await answer(visitor, next(_calls(CALL)))


async def _call_forever(flooder: Peer, calls: Iterator[Call], answers: list[Answer]) -> None:
    while True:
        answers.append(await answer(flooder, next(calls)))


def _calls(load: Load) -> Iterator[Call]:
    """One after the other, the same lengths each time, and no prompt twice."""
    return (load.calls(number)[0] for number in count())


def rows(visits: Sequence[Visits]) -> list[tuple[str, ...]]:
    """One row a server, for a table under HEADER: medians, and lowest and highest."""
    return [
        (
            visit.peer,
            *(
                f"{median(values):.2f} s ({between(values)})"
                for values in (visit.alone, visit.beside, visit.whole)
            ),
            f"{median(visit.flood_rates):,.0f}",
        )
        for visit in visits
    ]


def ratios(visits: Sequence[Visits]) -> list[str]:
    """How much longer a first token takes beside the flood, for each server and over ours."""
    own = median(visits[0].beside)
    return [
        f"{visit.peer}: {median(visit.beside) / median(visit.alone):.1f} x alone, "
        f"{median(visit.beside) / own:.1f} x {visits[0].peer}'s beside the flood"
        for visit in visits
    ]
