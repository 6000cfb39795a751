"""Service of two backlogged tenants of weights 3 and 1 through the whole server.

Closed loop on purpose: both tenants must stay backlogged, whatever they are given.
"""

import asyncio
import itertools
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from loadgen.server import Server, serving

CONFIG = "[kernel]\nmax_running = 64\n"
CALLS_OPEN = 96  # of each tenant; together three times what runs
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Shares:
    """Cost units of service, ended calls and output tokens in the measured part."""

    service: dict[str, float]
    calls: dict[str, int]
    output_tokens: float
    ratio: float


def measure(warm_up: float, seconds: float, report: Callable[[str], None]) -> Shares:
    """Run the two tenants and compare what the server's own events say it gave them."""
    report("starting a server")
    with serving(CONFIG) as server:
        return asyncio.run(_measure(server, warm_up, seconds, report))


async def _measure(
    server: Server, warm_up: float, seconds: float, report: Callable[[str], None]
) -> Shares:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as client:
        report(f"{2 * CALLS_OPEN} calls open; warming up for {warm_up:g} s")
        ended = dict.fromkeys(server.keys, 0)
        load = [
            asyncio.create_task(_call_forever(client, server.keys[tenant], worker, tenant, ended))
            for tenant in server.keys
            for worker in range(CALLS_OPEN)
        ]
        await _unless_failed(load, warm_up)
        before, calls_before = await _counters(client), dict(ended)
        report(f"measuring for {seconds:g} s")
        await _unless_failed(load, seconds)
        after, calls_after = await _counters(client), dict(ended)
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
    if not after["service", "bronze"] > before["service", "bronze"]:
        raise RuntimeError("bronze was served nothing: measure for longer")
    service = {t: after["service", t] - before["service", t] for t in server.keys}
    return Shares(
        service=service,
        calls={t: calls_after[t] - calls_before[t] for t in server.keys},
        output_tokens=sum(after["output", t] - before["output", t] for t in server.keys),
        ratio=service["gold"] / service["bronze"],
    )


async def _unless_failed(load: list[asyncio.Task[None]], seconds: float) -> None:
    """Wait, but not on when a caller has failed."""
    done, _ = await asyncio.wait(load, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()


async def _call_forever(
    client: httpx.AsyncClient, key: str, worker: int, tenant: str, ended: dict[str, int]
) -> None:
    for number in itertools.count():
        first = 1000 + worker * 97 + number * 13  # distinct prompts: no prefix is shared
        body = {
            "model": "smollm2-135m",
            "prompt": [first % 40_000, *range(2000 + worker, 2000 + worker + PROMPT_TOKENS - 1)],
            "max_tokens": OUTPUT_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
        }
        headers = {"authorization": f"Bearer {key}"}
        answer = await client.post("/v1/completions", json=body, headers=headers)
        answer.raise_for_status()
        ended[tenant] += 1


async def _counters(client: httpx.AsyncClient) -> defaultdict[tuple[str, str], float]:
    """Service and output tokens by tenant, 0 for a tenant that nothing was done for yet."""
    text = (await client.get("/metrics")).text
    names = {"service": "watermaster_charged_service", "output": "watermaster_output_tokens"}
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for short, name in names.items():
        pattern = rf"^{name}(?:_total)?\{{([^}}]*)\}} (\S+)$"
        for labels, value in re.findall(pattern, text, re.MULTILINE):
            tenant = re.search(r'tenant="([^"]+)"', labels)
            if tenant:
                found[short, tenant[1]] = float(value)
    return found
