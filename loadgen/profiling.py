"""The step times of the running engine over a grid of step shapes, and the profile fitted to them.

Contexts are filled without being computed, so that nearly all time goes into steps that are
measured: decode batches, alone and with one prompt each, and prompts alone, behind a cached prefix
or not. The grid is gone through in passes, in another order each time, so that a slow minute of the
machine does not fall on one kind of step.
"""

import asyncio
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import fmean

import numpy as np

from engine.core.config import KernelConfig
from engine.core.plan import IntArray
from engine.host.generation import Generation
from engine.runtime.host_link import seconds_a_block
from engine.runtime.kv_cache import KVCache
from engine.sim.profile import HostLink, StepShape
from loadgen.live import LiveEngine, LiveError, LiveModel, Step, drain, on_passing_thread
from loadgen.profile_fit import Fit, Measured, fit_profile
from telemetry.events import Cause

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
CONTEXTS = (16, 128, 512, 1024, 2000)
MIXED_BATCHES = (1, 8, 16, 32, 64)
MIXED_CONTEXTS = (128, 512)
MIXED_PROMPTS = (16, 64, 128, 256, 512)
PROMPTS = (16, 32, 64, 128, 256, 512, 1024)
PREFIXES = (0, 512, 1536)
DECODES = 5  # steps of each decode batch in a pass
LONG = 256  # output tokens of a decoding sequence: more than a round takes but on a busy machine
TRIES = 10  # of a round whose sequences came to their end before all was measured
LINK_BLOCKS = 256  # moved to measure the way to the host

Progress = Callable[[float], None]  # told the share of the time that has passed


@dataclass(frozen=True, slots=True)
class Round:
    """A decode batch of a mean context, then `prompts` one after the other beside it.

    Without a batch, `prompts` alone behind `context` cached tokens.
    """

    decoding: int
    context: int
    prompts: tuple[int, ...]


@dataclass(slots=True)
class Samples:
    """The steps measured of each shape, how often the whole grid was gone through, and seconds."""

    steps: "dict[Key, list[Step]]" = field(default_factory=dict)
    passes: int = 0
    seconds: float = 0.0

    def with_those_of(self, other: "Samples") -> "Samples":
        """Both together, each left as it is."""
        steps = {
            key: [*self.steps.get(key, ()), *other.steps.get(key, ())]
            for key in {**self.steps, **other.steps}
        }
        return Samples(steps, self.passes + other.passes, self.seconds + other.seconds)


@dataclass(frozen=True, slots=True)
class Profiled:
    """Measured shapes, their fit, how often the whole grid was gone through, and the seconds."""

    measured: tuple[Measured, ...]
    fit: Fit
    passes: int
    seconds: float


Key = tuple[Round, int]  # a round and the prompt tokens of the step


def grid(tokens: int, context: int) -> list[Round]:
    """The rounds that fit a KV pool of so many tokens and sequences of so many."""
    decodes = {(b, c) for b in BATCHES for c in CONTEXTS}
    mixed = {(b, c) for b in MIXED_BATCHES for c in MIXED_CONTEXTS}
    rounds = [Round(b, c, MIXED_PROMPTS if (b, c) in mixed else ()) for b, c in decodes | mixed]
    rounds += [Round(0, c, PROMPTS) for c in PREFIXES]
    cut = (replace(r, prompts=_fitting(r, context)) for r in rounds)
    return sorted(
        (r for r in cut if _room(r) <= tokens and 0 < _longest(r) <= context),
        key=lambda r: (r.decoding, r.context),
    )


def contexts(one: Round) -> list[int]:
    """Of the sequences of a decode batch: from half to one and a half times their mean.

    Attention pads sequences to common lengths, so a batch of equals would be too quick.
    """
    steps = (np.arange(one.decoding) + 0.5) / max(1, one.decoding)
    lengths: list[int] = np.rint(one.context * (0.5 + steps)).astype(int).tolist()
    return lengths


def _room(one: Round) -> int:
    """KV tokens that a round needs at most, and a tenth to spare."""
    growing = one.decoding * (one.context + LONG)
    return round(1.1 * (growing + one.context + max(one.prompts, default=0)))


def _fitting(one: Round, context: int) -> tuple[int, ...]:
    behind = 0 if one.decoding else one.context
    return tuple(tokens for tokens in one.prompts if behind + tokens < context)


def _longest(one: Round) -> int:
    """Tokens of the longest sequence of a round; 0 without any."""
    if one.decoding:
        return max(contexts(one)) + LONG
    return max((one.context + tokens + 1 for tokens in one.prompts), default=0)


def measure(model: LiveModel, seconds: float, report: Progress) -> Profiled:
    """Collect once, and fit."""
    samples = Samples()
    collect(model, seconds, samples, report)
    return fitted(model, samples)


def collect(
    model: LiveModel, seconds: float, samples: Samples, report: Progress = lambda _share: None
) -> None:
    """Go through the grid as often as `seconds` allow, at least once, adding to `samples`.

    LiveError if the engine refuses the work or its KV pool holds too little of it.
    """
    asyncio.run(_collect(model, seconds, samples, report))


def fitted(model: LiveModel, samples: Samples) -> Profiled:
    """The profile of all that was collected."""
    measured = tuple(_summary(steps) for _, steps in sorted(samples.steps.items(), key=_order))
    fit = fit_profile(measured, on_passing_thread(lambda: host_link(model)))
    return Profiled(measured, fit, samples.passes, samples.seconds)


async def _collect(model: LiveModel, seconds: float, samples: Samples, report: Progress) -> None:
    kernel = kernel_for(model.kernel)
    rounds = grid(kernel.num_blocks * kernel.block_size, kernel.max_context)
    if not any(one.decoding > 1 for one in rounds) or not any(one.prompts for one in rounds):
        raise LiveError("the KV cache is too small to profile: raise kernel.kv_memory")
    async with LiveEngine(model, kernel) as engine:
        await Profiler(engine, rounds, kernel.vocab_size, samples).run(seconds, report)


def kernel_for(kernel: KernelConfig) -> KernelConfig:
    """The served kernel, with room for the largest step of the grid and prefixes to be found."""
    return replace(
        kernel,
        max_running=max(BATCHES) + 1,
        max_step_tokens=max(kernel.max_step_tokens, max(PROMPTS) + max(BATCHES) + kernel.min_chunk),
        prefix_cache=True,
    )


class Profiler:
    """Goes through the rounds on a running engine and keeps the steps of each shape."""

    def __init__(
        self, engine: LiveEngine, rounds: list[Round], vocabulary: int, samples: Samples
    ) -> None:
        self._engine = engine
        self._rounds = rounds
        self._vocabulary = vocabulary
        self._samples = samples
        self._random = np.random.default_rng(1)

    async def run(self, seconds: float, report: Progress) -> None:
        """Go on for so many seconds, but to the end of the first pass."""
        began, order, passes = time.monotonic(), Random(self._samples.passes), 0
        passed = 0.0
        while not passes or passed < seconds:
            for one in order.sample(self._rounds, len(self._rounds)):
                report(min(1.0, passed / seconds))
                await self._round(one)
                passed = time.monotonic() - began
                if passes and passed > seconds:
                    break
            else:
                passes += 1
        self._samples.passes += passes
        self._samples.seconds += passed

    async def _round(self, one: Round) -> None:
        """LiveError if sequences come to their end before all is measured, again and again."""
        wanted = {*one.prompts, *((0,) if one.decoding else ())}
        for _ in range(TRIES):
            before = len(self._engine.watch.steps)
            whole = await (self._beside_decodes(one) if one.decoding else self._alone(one))
            if not whole:
                continue
            for step in self._engine.watch.steps[before:]:
                shape = step.shape
                if shape.decode_sequences == one.decoding and shape.prefill_tokens in wanted:
                    self._samples.steps.setdefault((one, shape.prefill_tokens), []).append(step)
            return
        raise LiveError(
            f"the machine is too busy to profile: {TRIES} times a sequence had said its {LONG} "
            f"tokens before the steps beside it were measured"
        )

    async def _alone(self, one: Round) -> bool:
        prefix = self._prompt(one.context)
        if one.context:
            self._engine.fill()
            await drain(self._engine.generate(prefix, 1))
            self._engine.fill(until=0)
        for tokens in one.prompts:
            prompt = np.concatenate([prefix, self._prompt(tokens)])
            await drain(self._engine.generate(prompt, 1))
        return True

    async def _beside_decodes(self, one: Round) -> bool:
        """Returns whether all sequences decoded until everything was measured."""
        engine = self._engine
        wanted = len(engine.watch.steps) + DECODES
        engine.fill(until=one.decoding)
        streams = [engine.generate(self._prompt(length), LONG) for length in contexts(one)]
        readers = [asyncio.create_task(drain(stream)) for stream in streams[1:]]
        while len(engine.watch.steps) < wanted and await _goes_on(streams[0]):
            pass
        for tokens in one.prompts:
            await drain(engine.generate(self._prompt(tokens), 1))
        for stream in streams:
            stream.cancel(Cause.CANCELLED)
        ends = await asyncio.gather(drain(streams[0]), *readers)
        engine.fill(until=0)
        return all(end is Cause.CANCELLED for end in ends)

    def _prompt(self, tokens: int) -> IntArray:
        """Random, so that no two prompts share blocks by chance."""
        return self._random.integers(0, self._vocabulary, tokens).astype(np.int32)


async def _goes_on(stream: Generation) -> bool:
    """Read what is pending, or wait for more. LiveError if the stream ended before its length."""
    end = (await stream.next())[-1].finished
    if end is not None and end.cause is not Cause.LENGTH:
        raise LiveError(f"a stream of the profile ended early: {end.cause.value}: {end.detail}")
    return end is None


def _order(item: tuple[Key, list[Step]]) -> tuple[int, int, int]:
    (one, tokens), _ = item
    return (one.decoding, tokens, one.context)


def _summary(steps: list[Step]) -> Measured:
    """Steps of nearly one shape, as a mean: a run lasts as long as all its steps, slow ones too."""
    hosts = [step.host for step in steps if step.host is not None]
    shapes = [step.shape for step in steps]
    return Measured(
        shape=StepShape(
            prefill_tokens=shapes[0].prefill_tokens,
            prefill_context=round(fmean(shape.prefill_context for shape in shapes)),
            decode_sequences=shapes[0].decode_sequences,
            context_tokens=round(fmean(shape.context_tokens for shape in shapes)),
        ),
        device=fmean(step.device for step in steps),
        host=fmean(hosts) if hosts else None,
        steps=len(steps),
    )


def host_link(model: LiveModel) -> HostLink:
    """How fast KV moves to the host: on a card beside a step, else before it."""
    llama, size = model.model, model.kernel.block_size
    where = (llama.dtype, llama.device, LINK_BLOCKS, model.kv_dtype)
    cache = KVCache(llama.config, LINK_BLOCKS, size, *where)
    moved = cache.host[0].nbytes
    overlap = model.kernel.host_overlap
    return HostLink(moved / seconds_a_block(cache), moved // size, overlap=overlap)


def about(model: LiveModel, profiled: Profiled) -> dict[str, object]:
    """Where a profile comes from, for its file."""
    import torch

    return {
        "machine": _machine(),
        "model": model.name,
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "threads": model.threads or torch.get_num_threads(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "passes": profiled.passes,
        "shapes": len(profiled.measured),
        "mean_error": round(profiled.fit.mean_error, 4),
        "worst_error": round(profiled.fit.worst_error, 4),
    }


def _machine() -> str:
    """The processor's name where the system tells it, and the number of cores."""
    name = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = (line.partition(":") for line in information.read_text().splitlines())
        name = next((value.strip() for key, _, value in lines if "model name" in key), name)
    return f"{name}, {os.cpu_count()} cores"
