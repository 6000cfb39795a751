"""Many requests of mixed lengths through the production scheduler: output tokens a second."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.core.commands import FlowNode, Submit
from engine.core.config import KernelConfig
from engine.core.loop import EngineLoop
from engine.core.plan import IntArray, Sampling
from engine.core.scheduler import Scheduler
from engine.runtime.device_check.report import Row
from engine.runtime.device_check.steps import GREEDY
from engine.runtime.device_check.target import Target
from engine.runtime.gpu.executor import GpuExecutor
from telemetry.events import Cause
from telemetry.lineage import Lineage

NAME = "mixed run"


@dataclass(frozen=True, slots=True)
class Request:
    prompt: IntArray
    output: int
    sampling: Sampling = GREEDY


@dataclass(frozen=True, slots=True)
class Run:
    """What came of some requests: their texts in order, and seconds from first to last."""

    texts: list[list[int]]
    seconds: float

    @property
    def rate(self) -> float:
        """Output tokens a second."""
        return sum(len(text) for text in self.texts) / self.seconds


def some_requests(target: Target, vocab: int) -> list[Request]:
    """The same for every run: lengths uniform between the bounds."""
    sizes, rng = target.sizes, np.random.default_rng(0)
    low, high = sizes.lengths
    lengths = rng.integers(low, high + 1, (sizes.requests, 2)).tolist()
    return [
        Request(rng.integers(0, vocab, prompt).astype(np.int32), output)
        for prompt, output in lengths
    ]


def drive(executor: GpuExecutor, config: KernelConfig, requests: Sequence[Request]) -> Run:
    """All of `requests` at once. RuntimeError if one does not come to its full length."""
    scheduler = Scheduler(config)
    loop = EngineLoop(scheduler, executor, time.monotonic_ns)
    texts: dict[int, list[int]] = defaultdict(list)
    began = time.perf_counter()
    commands = [_submit(number, request) for number, request in enumerate(requests)]
    while loop.iterate(commands) or scheduler.running or scheduler.waiting:
        commands = []
        outputs = scheduler.take_outputs()
        scheduler.take_events()
        for number, token in zip(outputs.sequences, outputs.tokens, strict=True):
            texts[number].append(token)
        for number, finished in outputs.ended:
            if finished.cause is not Cause.LENGTH:
                raise RuntimeError(f"request {number} ended: {finished.cause} {finished.detail}")
    return Run([texts[number] for number in range(len(requests))], time.perf_counter() - began)


def mixed_rows(target: Target, executor: GpuExecutor, config: KernelConfig) -> Iterator[Row]:
    """With overlap and graphs; on the same executor with overlap off; and without graphs too."""
    requests = some_requests(target, config.vocab_size)
    low, high = target.sizes.lengths
    serial = replace(config, max_in_flight=1)
    # libraries load kernels at the first product of a size: the first run alone would pay for that
    some = [replace(r, prompt=r.prompt[:low], output=1 + i // 4) for i, r in enumerate(requests)]
    drive(executor, config, some)
    full = drive(executor, config, requests).rate
    note = f"{len(requests)} requests of {low}–{high} tokens in and out, overlap and graphs"
    yield Row(NAME, full, "tok/s", note=note)
    alone = drive(executor, serial, requests).rate
    yield Row(f"{NAME}, overlap off", alone, "tok/s", more={"gain": full / alone})
    executor.release_graphs()
    eager = drive(executor, serial, requests).rate
    yield Row(f"{NAME}, overlap and graphs off", eager, "tok/s", more={"gain": full / eager})


def _submit(number: int, request: Request) -> Submit:
    name = f"request-{number}"
    return Submit(
        lineage=Lineage("check", name, "run", "attempt", name),
        sequences=(number,),
        flow=(FlowNode("check"),),
        prompt=request.prompt,
        salt=b"",
        block_hashes=(),
        max_tokens=request.output,
        sampling=request.sampling,
        queue_requests=1 << 20,
        queue_tokens=1 << 40,
    )
