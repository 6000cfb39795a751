"""A long prompt among running answers, and a prompt whose beginning is in the prefix cache."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from engine.core.config import KernelConfig
from engine.core.plan import IntArray
from engine.host.generation import Generation
from loadgen.limits import Finding, between
from loadgen.live import LiveEngine, LiveError, LiveModel, drain
from loadgen.stats import quantile

RUNNING = 16  # answers beside the long prompt
CONTEXT = 128  # tokens that each of them starts with
LONG = 4096  # tokens of the prompt
SHARED = 2000  # tokens that two prompts begin with
OWN = 16  # tokens that each has of its own
TARGET = 0.05  # seconds per output token, configured for all
SLACK = 2.0  # times the target that the slowest hundredth of tokens may take
SPEED_UP = 8.0  # of the time to the first token, at least
SETTLED = 64  # tokens of each answer before the prompt comes


@dataclass(frozen=True, slots=True)
class LongContext:
    """Seconds: `gaps` between tokens of the running answers while the long prompt is computed,

    which took `prompt`; to the first token after a prompt that is `cold`, and one that begins
    alike.
    """

    gaps: tuple[float, ...]
    prompt: float
    cold: tuple[float, ...]
    cached: tuple[float, ...]


def measure(model: LiveModel, repeat: int) -> LongContext | None:
    """None where the model's context is too short for it."""
    if model.kernel.max_context <= LONG:
        return None
    policy = replace(model.kernel.policy, tpot_target=TARGET)
    return asyncio.run(_measure(model, replace(model.kernel, policy=policy), repeat))


async def _measure(model: LiveModel, kernel: KernelConfig, repeat: int) -> LongContext:
    random = np.random.default_rng(1)

    def prompt(tokens: int) -> IntArray:
        return random.integers(0, kernel.vocab_size, tokens).astype(np.int32)

    async with LiveEngine(model, kernel) as engine:
        for tokens in (64, 256, LONG // 8):  # the engine learns how long steps take
            await drain(engine.generate(prompt(tokens), 8))
        gaps, seconds = await _beside(engine, prompt)
        cold: list[float] = []
        cached: list[float] = []
        for _ in range(repeat):
            shared = prompt(SHARED)
            for kept in (cold, cached):
                own = np.concatenate([shared, prompt(OWN)])
                kept.append(await _first(engine.generate(own, 1)))
    return LongContext(tuple(gaps), seconds, tuple(cold), tuple(cached))


async def _beside(
    engine: LiveEngine, prompt: Callable[[int], IntArray]
) -> tuple[list[float], float]:
    """Gaps of the running answers while a long prompt is computed, and its seconds."""
    output = LONG // 4  # more than are drawn meanwhile
    answers = [engine.generate(prompt(CONTEXT), output) for _ in range(RUNNING)]
    times: list[list[float]] = [[] for _ in answers]
    settled = [asyncio.Event() for _ in answers]
    readers = [
        asyncio.create_task(_note(*one)) for one in zip(answers, times, settled, strict=True)
    ]
    for event in settled:
        await event.wait()
    began = time.perf_counter()
    seconds = await _first(engine.generate(prompt(LONG), 1))
    ended = began + seconds
    await asyncio.gather(*readers)
    if min(kept[-1] for kept in times) < ended:
        raise LiveError("the running answers ended before the long prompt was computed")
    gaps = [
        float(gap)
        for kept in times
        for at, gap in zip(kept[1:], np.diff(kept), strict=True)
        if began <= at <= ended
    ]
    return gaps, seconds


async def _note(answer: Generation, times: list[float], settled: asyncio.Event) -> None:
    while outputs := await answer.next():
        times += [time.perf_counter()] * sum(len(output.tokens) for output in outputs)
        if len(times) >= SETTLED:
            settled.set()


async def _first(answer: Generation) -> float:
    began = time.perf_counter()
    await drain(answer)
    return time.perf_counter() - began


def findings(found: LongContext) -> list[Finding]:
    """Against what is wanted."""
    gaps = [1e3 * gap for gap in found.gaps]
    ratios = [cold / cached for cold, cached in zip(found.cold, found.cached, strict=True)]
    return [
        Finding(
            f"TPOT p99 of {RUNNING} beside a prompt of {LONG:,}",
            *(quantile(gaps, 0.99), 1e3 * SLACK * TARGET, "ms"),
            note=f"median {median(gaps):.1f}, most {max(gaps):.1f}; {found.prompt:.2f} s",
        ),
        Finding(
            f"TTFT of {SHARED + OWN:,} tokens over that with {SHARED:,} cached",
            *(median(ratios), SPEED_UP, "x", "least"),
            note=between(ratios),
        ),
    ]
