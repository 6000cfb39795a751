"""What the losers of a race cost once it is won: racing fan-outs over HTTP on the real model.

The commit comes when it comes, also between two steps, so a step may be planned while it is read.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from loadgen.limits import Finding
from loadgen.server import Server, serving
from loadgen.stats import quantile

MOST_LAG = 1  # tokens of each loser, with one step in flight at a time
OF = 3  # attempts of a fan-out
TOKENS = 48  # of an answer that is not cut short
BODY = {
    "model": "smollm2-135m",
    "messages": [{"role": "user", "content": "What is a water clock?"}],
    "temperature": 0,
    "max_tokens": TOKENS,
    "ignore_eos": True,
}

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FanOut:
    """One race. `lags` are tokens computed for each loser after the commit had arrived, `ends` the
    milliseconds from sending it until each loser was told; `same` if the winner's text was that of
    a call alone.
    """

    lags: list[int]
    ends: list[float]
    same: bool


def measure(fan_outs: int, report: Report) -> list[FanOut]:
    """One after another, on a server of its own."""
    with serving("") as server:
        return asyncio.run(_measure(server, fan_outs, report))


async def _measure(server: Server, fan_outs: int, report: Report) -> list[FanOut]:
    headers = {"authorization": f"Bearer {server.keys['gold']}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
        alone = await _Attempt("alone", "alone").run(client)
        races = []
        for number in range(fan_outs):
            if number % 10 == 0:
                report(f"fan-out {number + 1} of {fan_outs}")
            races.append(await _race(client, f"race-{number}", alone))
        return races


async def _race(client: httpx.AsyncClient, task: str, alone: str) -> FanOut:
    attempts = [_Attempt(task, f"{task}-{number}") for number in range(OF)]
    running = [asyncio.create_task(attempt.run(client)) for attempt in attempts]
    await asyncio.gather(*(attempt.spoke.wait() for attempt in attempts))
    sent = time.perf_counter()
    won = await client.post(f"/v1/tasks/{task}/commit", json={"attempt": attempts[0].name})
    won.raise_for_status()
    texts = await asyncio.gather(*running)
    told = (await client.get(f"/v1/tasks/{task}")).raise_for_status().json()
    return FanOut(
        lags=[
            sequence["cancellation_lag_tokens"]
            for sequence in told["sequences"]
            if sequence["attempt"] != attempts[0].name
        ],
        ends=[1000 * (attempt.ended - sent) for attempt in attempts[1:]],
        same=texts[0] == alone,
    )


class _Attempt:
    """One stream of a fan-out."""

    def __init__(self, task: str, name: str) -> None:
        self.name = name
        self.spoke = asyncio.Event()
        self.ended = 0.0
        self._headers = {"x-task-id": task, "x-attempt-id": name}

    async def run(self, client: httpx.AsyncClient) -> str:
        """The text, as far as it came."""
        text, body = "", {**BODY, "stream": True}
        path = "/v1/chat/completions"
        async with client.stream("POST", path, json=body, headers=self._headers) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line.removeprefix("data: ")).get("choices", ()):
                        text += choice["delta"].get("content", "")
                    self.spoke.set()
        self.ended = time.perf_counter()
        return text


HEADER = ("lag of a loser", "losers")


def rows(races: list[FanOut]) -> list[tuple[str, ...]]:
    """How many losers had which lag, for a table under HEADER."""
    lags = [lag for race in races for lag in race.lags]
    return [(f"{lag} tokens", str(lags.count(lag))) for lag in sorted(set(lags))]


def findings(races: list[FanOut]) -> list[Finding]:
    """Against the limits."""
    lags = [lag for race in races for lag in race.lags]
    ends = sorted(end for race in races for end in race.ends)
    times = f"told within {quantile(ends, 0.5):.0f} ms, 99% within {quantile(ends, 0.99):.0f} ms"
    untouched = 100 * sum(race.same for race in races) / len(races)
    return [
        Finding("most tokens of a loser after the commit", max(lags), MOST_LAG, "", note=times),
        Finding("winners whose text is untouched", untouched, 100, "%", "least"),
    ]
