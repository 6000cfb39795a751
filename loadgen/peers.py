"""Our server and others on the same machine, in turns, under the same load."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import uvloop

from loadgen.limits import Finding, between
from loadgen.peer_client import Answer, Call, Peer, all_at_once, answer, find_model
from loadgen.server import serving

TOKENS = range(1000, 40_000)  # ordinary ones, of a vocabulary of at least that many
OURS = "watermaster"
PAUSE = 2.0  # seconds between turns: vLLM's worker keeps a core busy for one after its last request
HEADER = ("load", "server", "output tokens/s", "TTFT")

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Load:
    """`count` calls, `together` at a time, of random lengths in tokens."""

    name: str
    count: int
    together: int
    prompt: tuple[int, int]
    output: tuple[int, int]
    rate: bool  # what counts: output tokens a second, or else the time to the first

    def calls(self, seed: int) -> list[Call]:
        """Lengths are the same for the same seed. No prompt begins like one that a server saw."""
        lengths, tokens = random.Random(f"{self.name} {seed}"), random.Random()
        return [
            Call(
                tuple(tokens.choices(TOKENS, k=lengths.randint(*self.prompt))),
                lengths.randint(*self.output),
            )
            for _ in range(self.count)
        ]


LOADS = (
    Load("one stream", 3, 1, (128, 128), (128, 128), rate=True),
    Load("prompts of 512", 5, 1, (512, 512), (1, 1), rate=False),
    Load("32 at once", 32, 32, (64, 256), (16, 256), rate=True),
    Load("128 at once", 128, 128, (64, 256), (16, 256), rate=True),
)

# What is wanted of the ratio to a peer of that name, ours over theirs.
WANTED = {
    ("vllm", "32 at once"): 1.35,
    ("vllm", "128 at once"): 1.25,
    ("vllm", "prompts of 512"): 0.9,
    ("llama.cpp", "32 at once"): 2.5,
    ("llama.cpp", "128 at once"): 2.5,
    ("llama.cpp", "one stream"): 1.1,
}


@dataclass(frozen=True, slots=True)
class Run:
    """One server under one load, once."""

    load: str
    peer: str
    rate: float
    first: float  # seconds, in the median


def measure(
    urls: dict[str, str], loads: Sequence[Load], repeat: int, ours: str, report: Report
) -> list[Run]:
    """Each load on each server in turns, `repeat` times.

    `urls` are base URLs by name; our own server is started with the configuration `ours`. Raises
    PeerError.
    """
    with serving(ours) as server:
        found = [(OURS, f"{server.url}/v1", server.keys["gold"])]
        found += [(name, url.rstrip("/"), "none") for name, url in urls.items()]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_measure(found, loads, repeat, report))


async def _measure(
    found: list[tuple[str, str, str]], loads: Sequence[Load], repeat: int, report: Report
) -> list[Run]:
    peers = [Peer(name, url, await find_model(url, key), key) for name, url, key in found]
    for peer in peers:
        report(f"{peer.name}: model {peer.model}")
        await answer(peer, Call(tuple(TOKENS[:64]), 16))  # it may load or compile at first use
    runs = []
    for load in loads:
        for number in range(1, repeat + 1):
            calls = load.calls(number)
            for peer in peers:
                report(f"{load.name}, {number} of {repeat}: {peer.name}")
                if len(peers) > 1:
                    await asyncio.sleep(PAUSE)
                answers, seconds = await all_at_once(peer, calls, load.together)
                runs.append(_run(load, peer, answers, seconds))
    return runs


def _run(load: Load, peer: Peer, answers: list[Answer], seconds: float) -> Run:
    output = sum(one.output for one in answers)
    return Run(load.name, peer.name, output / seconds, median(one.first for one in answers))


def rows(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """One row a load and server, for a table under HEADER."""
    kinds = dict.fromkeys((run.load, run.peer) for run in runs)
    return [
        (
            *(load, peer),
            f"{median(rates):,.0f} ({between(rates)})",
            f"{1e3 * median(firsts):,.0f} ms",
        )
        for load, peer in kinds
        for rates, firsts in [_values(runs, load, peer)]
    ]


def findings(runs: Sequence[Run], loads: Sequence[Load]) -> list[Finding]:
    """Ratios to each peer for which one is wanted, run by run: ours over theirs."""
    found = []
    for load in loads:
        own_rates, own_firsts = _values(runs, load.name, OURS)
        for name in dict.fromkeys(run.peer for run in runs if run.peer != OURS):
            limit = WANTED.get((name, load.name))
            if limit is None:
                continue
            rates, firsts = _values(runs, load.name, name)
            own, theirs = (own_rates, rates) if load.rate else (own_firsts, firsts)
            ratios = [a / b for a, b in zip(own, theirs, strict=True)]
            found.append(
                Finding(
                    f"{load.name}, {'rate' if load.rate else 'TTFT'} over {name}'s",
                    *(median(ratios), limit, "x"),
                    "least" if load.rate else "most",
                    between(ratios),
                )
            )
    return found


def _values(runs: Sequence[Run], load: str, peer: str) -> tuple[list[float], list[float]]:
    mine = [run for run in runs if (run.load, run.peer) == (load, peer)]
    return [run.rate for run in mine], [run.first for run in mine]
