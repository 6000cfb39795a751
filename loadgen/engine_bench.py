"""Speed of the engine in this process beside what the machine could do at best, in one run."""

import asyncio
import resource
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from loadgen import long_context, machine, profiling, reality
from loadgen.limits import Finding, between
from loadgen.live import LiveEngine, LiveError, LiveModel, Step, on_passing_thread
from loadgen.long_context import LongContext
from loadgen.machine import Machine, Roofline
from loadgen.profiling import Profiler, Round, Samples

CONTEXT = 256  # tokens of each decoding sequence, on average
BATCHES = (1, 8, 32, 64)
PROMPTS = (128, 512, 1024)
MIXED = 32  # requests at once
MIXED_SHARE = 65.0  # percent of the roofline in the mixed run
HOST_LIMIT = 1.5  # milliseconds between two decode steps of 32 sequences
HEADER = ("step", "measured", "tokens/s", "at best", "share of the limit")

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """Steps of one kind: `seconds` each in the executor, and what they would take at best."""

    name: str
    tokens: int  # a step
    seconds: tuple[float, ...]
    at_best: float
    host: tuple[float, ...]  # seconds between steps

    @property
    def share(self) -> float:
        """Of the limit that is reached, in percent."""
        return 100 * self.at_best / median(self.seconds)


@dataclass(frozen=True, slots=True)
class Mixed:
    """32 requests at once, to the end of the last: output tokens a second, and the share of the

    roofline's time in that of all steps with what is between them, in percent.
    """

    rate: float
    share: float


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    machine: Machine
    paces: list[Pace]
    mixed: list[Mixed]
    peak_rss: int  # bytes of the process
    long_context: LongContext | None = None  # None where the model's context is too short


def measure(model: LiveModel, seconds: float, repeat: int, report: Report) -> EngineSpeed:
    """Steps of each kind for `seconds` together, then `repeat` mixed runs.

    LiveError for a model on a card, whose limits are others.
    """
    if model.model.device.type != "cpu":
        raise LiveError(
            f"the model runs on {model.model.device}, and the limits measured here are the CPU's; "
            "take python -m engine.runtime.device_check, or model.device = cpu"
        )
    report("measuring the machine")
    limits = on_passing_thread(lambda: machine.measure(model.model.dtype))
    held = model.model
    roofline = Roofline(limits, held.config, held.weight_bytes, held.dtype.itemsize)
    report(f"decode batches and prompts, {seconds:g} s")
    samples = Samples()
    asyncio.run(_collect(model, seconds, samples))
    paces = [
        _pace(key, steps, roofline) for key, steps in sorted(samples.steps.items(), key=_order)
    ]
    mixed = []
    for number in range(1, repeat + 1):
        report(f"{MIXED} requests at once, {number} of {repeat}")
        mixed.append(_mixed(model, roofline, number))
    report("a long prompt among running answers, and prompts that begin alike")
    long = long_context.measure(model, repeat)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return EngineSpeed(limits, paces, mixed, peak, long)


async def _collect(model: LiveModel, seconds: float, samples: Samples) -> None:
    kernel = profiling.kernel_for(model.kernel)
    prompts = tuple(tokens for tokens in PROMPTS if tokens < kernel.max_context)
    rounds = [Round(0, 0, prompts), *(Round(batch, CONTEXT, ()) for batch in BATCHES)]
    async with LiveEngine(model, kernel) as engine:
        await Profiler(engine, rounds, kernel.vocab_size, samples).run(seconds, lambda _share: None)


def _order(item: tuple[profiling.Key, list[Step]]) -> tuple[int, int]:
    (one, tokens), _ = item
    return one.decoding, tokens


def _pace(key: profiling.Key, steps: Sequence[Step], roofline: Roofline) -> Pace:
    one, tokens = key
    name = f"decode, batch {one.decoding}" if one.decoding else f"prefill, {tokens} tokens"
    return Pace(
        name=name,
        tokens=one.decoding or tokens,
        seconds=tuple(step.device for step in steps),
        at_best=median(roofline.seconds(step.shape) for step in steps),
        host=tuple(step.host for step in steps if step.host is not None),
    )


def _mixed(model: LiveModel, roofline: Roofline, seed: int) -> Mixed:
    kernel = reality.kernel_for(model.kernel, MIXED)
    load = reality.at_once(MIXED, seed)
    figures, steps = asyncio.run(reality.run_live(load, kernel, model))
    at_best = sum(roofline.seconds(step.shape) for step in steps)
    took = sum(step.device + (step.host or 0.0) for step in steps)
    return Mixed(figures.throughput, 100 * at_best / took)


def findings(result: EngineSpeed) -> list[Finding]:
    """Against the limits that this machine alone can judge."""
    shares = [one.share for one in result.mixed]
    found = [
        Finding(
            f"mixed run, {MIXED} at once",
            *(median(shares), MIXED_SHARE, "% of the limit", "least"),
            note=between(shares),
        )
    ]
    for pace in result.paces:
        if pace.name == f"decode, batch {MIXED}" and pace.host:
            host = [1e3 * seconds for seconds in pace.host]
            note = between(host)
            found.append(
                Finding(
                    f"host, a decode step of {MIXED}", median(host), HOST_LIMIT, "ms", note=note
                )
            )
    return found + (long_context.findings(result.long_context) if result.long_context else [])


def rows(result: EngineSpeed) -> list[tuple[str, ...]]:
    """One row a kind of step, for a table under HEADER."""
    return [
        (
            pace.name,
            f"{1e3 * median(pace.seconds):.1f} ms ({between([1e3 * s for s in pace.seconds])})",
            f"{pace.tokens / median(pace.seconds):,.0f}",
            f"{1e3 * pace.at_best:.1f} ms",
            f"{pace.share:.0f}%",
        )
        for pace in result.paces
    ]


def summary(result: EngineSpeed) -> list[str]:
    """The machine, the mixed run and memory, a line each."""
    rates = [one.rate for one in result.mixed]
    limits = result.machine
    return [
        f"matrix products of {limits.numbers}: {limits.flops / 1e9:,.0f} GFLOP/s at best",
        f"memory copied: {limits.bandwidth / 1e9:.1f} GB/s at best, read and written",
        f"mixed run: {median(rates):,.0f} output tokens/s ({between(rates)})",
        f"peak memory of the process: {result.peak_rss / (1 << 30):.2f} GiB",
    ]


def figures(result: EngineSpeed) -> dict[str, Any]:
    """JSON-ready."""
    return asdict(result)
