"""The real engine in this process, without HTTP, and what each of its steps held and took."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from math import inf
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import torch

from engine.core.commands import FlowNode
from engine.core.config import KernelConfig
from engine.core.executor import Executor
from engine.core.plan import IntArray, Sampling, StepPlan, StepResult
from engine.host.engine import Engine, GenerationRequest
from engine.host.generation import Generation
from engine.runtime.gpu.build import make_executor
from engine.runtime.model import Model
from engine.sim.executor import shape_of
from engine.sim.profile import StepShape
from telemetry.clock import SystemClock
from telemetry.events import Cause, Event, SequenceArrived, SequenceEnded, StepCommitted
from telemetry.lineage import Lineage
from telemetry.units import SECOND

T = TypeVar("T")
GREEDY = Sampling(temperature=0.0)  # without stop tokens: every output has its exact length
GRACE = 5.0  # seconds for what still runs at the end


class LiveError(Exception):
    """The engine did not do what a measurement needs; one sentence."""


@dataclass(frozen=True, slots=True)
class LiveModel:
    """A loaded model, and the sizes with which it is served. `threads` 0 is torch's own choice;

    `kv_dtype`, for which the KV blocks of `kernel` are counted, None for the model's.
    """

    name: str
    model: Model
    kernel: KernelConfig
    threads: int = 0
    kv_dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what it held, and seconds in the executor and of everything else since the last.

    `host` is None where the engine was idle in between.
    """

    shape: StepShape
    device: float
    host: float | None


def on_passing_thread(work: Callable[[], T]) -> T:
    """The result of `work`, done on a thread that ends with it.

    Each thread that computes with torch gets a pool of helpers of its own, for as long as it lives.
    Beside a second pool libgomp lets helpers sleep at once, and the engine thread would take up to
    twice as long as in a server, where nobody else computes.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(work).result()


@dataclass(frozen=True, slots=True)
class Observed:
    """A launched step; `taken` is what is said of one that was not computed."""

    inner: Any
    taken: StepResult | None = None


class ObservedExecutor:
    """Notes the shape of every step. It takes steps in without computing them up to one in which

    `fill_until` sequences decode. Long contexts are there at once that way; what they hold does not
    matter to time.
    """

    def __init__(self, inner: Executor[Any], block_size: int) -> None:
        self.fill_until: float = 0
        self.shapes: dict[int, StepShape] = {}  # of computed steps that were not taken out yet
        self._inner = inner
        self._block_size = block_size

    def launch(self, plan: StepPlan) -> Observed:
        """Compute the plan, or only its changes to the batch."""
        shape = shape_of(plan, self._block_size)
        if shape.decode_sequences >= self.fill_until:
            self.fill_until = 0
            self.shapes[plan.step] = shape
            return Observed(self._inner.launch(plan))
        still = replace(
            plan, counts=np.zeros_like(plan.counts), samples=np.zeros_like(plan.samples)
        )
        drawn = plan.samples.astype(np.int32)
        taken = StepResult(plan.step, drawn, np.zeros(int(drawn.sum()), np.int32), 1)
        return Observed(self._inner.launch(still), taken)

    def wait(self, ticket: Observed) -> StepResult:
        """The result of a launched step."""
        result: StepResult = self._inner.wait(ticket.inner)
        return ticket.taken or result


class StepWatch:
    """Folds events into steps; those without a shape were not computed and are left out."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._live = 0
        self._landed = 0  # the last commit
        self._idle = True  # nothing was left to compute after it

    def fold(self, events: list[Event], shapes: dict[int, StepShape]) -> None:
        """Take in the events of one iteration of the engine."""
        for event in events:
            match event:
                case SequenceArrived():
                    self._live += 1
                case SequenceEnded():
                    self._live -= 1
                case StepCommitted():
                    self._commit(event, shapes.pop(event.step, None))
        self._idle = self._idle or not self._live

    def _commit(self, event: StepCommitted, shape: StepShape | None) -> None:
        if shape is not None:
            between = event.now - self._landed - event.duration
            host = None if self._idle else between / SECOND
            self.steps.append(Step(shape, event.duration / SECOND, host))
        self._landed, self._idle = event.now, False


class LiveEngine:
    """An engine over `model`, started and stopped by `async with`. `on_events` as in `Engine`."""

    def __init__(
        self,
        model: LiveModel,
        kernel: KernelConfig,
        on_events: Callable[[list[Event]], None] = lambda _events: None,
    ) -> None:
        self.clock = SystemClock()
        self.watch = StepWatch()
        self._model = model
        self._kernel = kernel
        self._on_events = on_events
        self._numbers = count(1)
        self._executor: ObservedExecutor | None = None
        self._engine = Engine("live", kernel, self._build, self.clock, on_events=self._note)

    async def __aenter__(self) -> Self:
        self._engine.start()
        try:
            await self._engine.ready()
        except RuntimeError as error:
            raise LiveError(f"the engine did not start: {error}") from None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._engine.stop(GRACE)
        # what it held lies in a cycle, and the next engine's KV cache would come on top of it
        self._executor = None
        gc.collect()

    def generate(
        self, prompt: IntArray, max_tokens: int, flow: tuple[FlowNode, ...] = (FlowNode("live"),)
    ) -> Generation:
        """Ask for exactly `max_tokens` tokens after `prompt`."""
        number = next(self._numbers)
        lineage = Lineage(flow[0].name, f"task-{number}", "run", "attempt", f"request-{number}")
        return self._engine.generate(
            GenerationRequest(lineage, flow, prompt, 1, max_tokens, GREEDY)
        )

    def fill(self, until: float = inf) -> None:
        """From now on take steps in without computing them, up to one in which `until` sequences

        decode; 0 to compute all again.
        """
        assert self._executor is not None  # there once the engine is ready
        self._executor.fill_until = until

    def _build(self) -> ObservedExecutor:
        """Called on the engine thread, whose number of threads it sets."""
        if self._model.threads:
            torch.set_num_threads(self._model.threads)
        executor = make_executor(self._model.model, self._kernel, self._model.kv_dtype)
        executor.warm_up()
        if self._model.model.device.type == "cpu":
            executor.cache.blocks.fill_(0)  # else all untouched pages are one, in the nearest cache
        self._executor = ObservedExecutor(executor, self._kernel.block_size)
        return self._executor

    def _note(self, events: list[Event]) -> None:
        assert self._executor is not None  # events come from steps
        self.watch.fold(events, self._executor.shapes)
        self._on_events(events)


async def drain(generation: Generation) -> Cause | None:
    """Read a generation to its end and drop what it says; why it ended, None if that was read.

    LiveError if it ended otherwise than at its length or by our own cancelling.
    """
    cause = None
    while outputs := await generation.next():
        for output in outputs:
            end = output.finished
            if end is None:
                continue
            cause = end.cause
            if cause not in (Cause.LENGTH, Cause.CANCELLED):
                raise LiveError(f"the engine answered {cause.value}: {end.detail}")
    return cause
