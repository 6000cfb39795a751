"""The engine as the event loop sees it: requests in, generations out, one hand-off a step."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import monotonic

from engine.core.commands import Command, Drain, FlowNode, Submit
from engine.core.config import KernelConfig
from engine.core.hashing import block_hashes, salt_of
from engine.core.outputs import Finished, OutputBatch
from engine.core.plan import IntArray, Sampling
from engine.core.pressure import Inquiry, Pressure
from engine.host.command_log import CommandLogConfig
from engine.host.generation import MAX_BUFFERED_TOKENS, Generation
from engine.host.worker import AnyExecutor, Book, EngineState, EngineWorker, Load, keep_no_book
from telemetry.clock import Clock
from telemetry.events import Cause, Event
from telemetry.lineage import Lineage
from telemetry.units import SECOND

log = logging.getLogger("watermaster.engine")

NUMBERS = count(1)  # of sequences; no two engines of a process share one, for traces of both
MAILBOX_SLACK = 1024  # commands in the mailbox beyond the queue cap before refusing


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One gateway call. `prompt` is int32 token ids; deadlines are monotonic nanoseconds.

    `tpot_target` is seconds per output token; it, `admission`, `on_infeasible` and `on_expiry` are
    the tenant's choices, None where it leaves them to the policy. A refused caller is known by its
    `claims` when it comes back, which `retry` says it does.
    """

    lineage: Lineage
    flow: tuple[FlowNode, ...]
    prompt: IntArray
    n: int
    max_tokens: int
    sampling: Sampling
    deadline: int | None = None
    first_token_deadline: int | None = None
    queue_requests: int | None = None
    queue_tokens: int | None = None
    tpot_target: float | None = None
    admission: str | None = None
    on_infeasible: str | None = None
    on_expiry: str | None = None
    claims: tuple[str, ...] = ()
    retry: bool = False


@dataclass(frozen=True, slots=True)
class HostConfig:
    """Limits of the host around the kernel."""

    max_restarts: int = 3  # within ten minutes; one more ends the engine
    step_timeout: float = 120.0  # seconds; a step that takes longer is hung
    max_buffered_tokens: int = MAX_BUFFERED_TOKENS  # of one request that is not read
    share_prefixes: bool = False  # whether tenants may hit each other's cached prefixes
    command_log: CommandLogConfig | None = None  # where everything done to the kernel is kept


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A recent picture of an engine."""

    state: EngineState
    error: str  # why it failed or restarted last; empty otherwise
    restarts: int
    load: Load
    config: KernelConfig


class Engine:
    """One model's engine. Built, started and read on one event loop; `post` is thread-safe.

    `book` is called on the engine thread with what was decided, before any of it is handed out.
    """

    def __init__(
        self,
        name: str,
        kernel: KernelConfig,
        executor_factory: Callable[[], AnyExecutor],
        clock: Clock,
        *,
        host: HostConfig | None = None,
        salt: tuple[str, ...] = (),
        on_events: Callable[[list[Event]], None] = lambda _events: None,
        book: Book = keep_no_book,
    ) -> None:
        self.name = name
        self._kernel = kernel
        self._host = host or HostConfig()
        self._salt = salt
        self._events_sink = on_events
        self._streams: dict[int, Generation] = {}
        self._state = EngineState.STARTING
        self._error = ""
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._worker = EngineWorker(
            name,
            kernel,
            executor_factory,
            clock,
            self,
            self._host.max_restarts,
            self._host.command_log,
            book,
        )

    def start(self) -> None:
        """Start the engine thread, which loads the model; call on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._watchdog = asyncio.create_task(self._watch())
        self._worker.start()

    async def ready(self) -> None:
        """Wait until requests are served; raises RuntimeError if the engine fails instead."""
        await self._until(EngineState.READY, EngineState.FAILED)
        if self._state is EngineState.FAILED:
            raise RuntimeError(self._error)

    async def failed(self) -> str:
        """Wait until the engine is beyond recovery; returns why."""
        await self._until(EngineState.FAILED)
        return self._error

    def status(self) -> EngineStatus:
        """A recent picture of the engine."""
        worker = self._worker
        return EngineStatus(self._state, self._error, worker.restarts, worker.load, self._kernel)

    def post(self, command: Command) -> None:
        """Hand a command to the engine; it takes effect before the next step is planned."""
        self._worker.post(command)

    async def pressure(self, inquiry: Inquiry) -> Pressure:
        """How a tenant stands after the next step, which a hung engine never tells."""
        answer: asyncio.Future[Pressure] = self._loop.create_future()
        self._worker.ask(inquiry, partial(self._on_loop, _settle, answer))
        return await answer

    def generate(self, request: GenerationRequest) -> Generation:
        """Ask for `request.n` choices of a prompt. Refusals arrive as the first output."""
        numbers = tuple(next(NUMBERS) for _ in range(request.n))
        generation = Generation(numbers, self.post, self._host.max_buffered_tokens)
        refusal = self._refusal(request)
        if refusal is not None:
            for number in numbers:
                generation.push_end(number, refusal)
            return generation
        for number in numbers:
            self._streams[number] = generation
        self._idle.clear()
        self.post(self._submit(request, numbers))
        return generation

    async def stop(self, grace: float) -> None:
        """Refuse new work, let running streams finish for `grace` seconds, end the rest, stop."""
        self.post(Drain())
        if not await self._drained(grace):
            for generation in set(self._streams.values()):
                generation.cancel(Cause.SHUTDOWN)
            await self._drained(self._host.step_timeout)
        self._watchdog.cancel()
        if self._state is not EngineState.FAILED:
            await asyncio.to_thread(self._worker.stop, self._host.step_timeout)
        for number in list(self._streams):  # the thread ended before it looked at these
            self._end(number, Finished(Cause.SHUTDOWN, 0, 0, 0))

    def _submit(self, request: GenerationRequest, numbers: tuple[int, ...]) -> Submit:
        owner = "" if self._host.share_prefixes else request.lineage.tenant
        salt = salt_of(owner, *self._salt)
        return Submit(
            lineage=request.lineage,
            sequences=numbers,
            flow=request.flow,
            prompt=request.prompt,
            salt=salt,
            block_hashes=block_hashes(request.prompt, salt, self._kernel.block_size),
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            deadline=request.deadline,
            first_token_deadline=request.first_token_deadline,
            queue_requests=request.queue_requests,
            queue_tokens=request.queue_tokens,
            tpot_target=request.tpot_target,
            admission=request.admission,
            on_infeasible=request.on_infeasible,
            on_expiry=request.on_expiry,
            claims=request.claims,
            retry=request.retry,
        )

    def _refusal(self, request: GenerationRequest) -> Finished | None:
        """Why the kernel is not even asked: the engine is gone, or its mailbox overflows."""
        if self._state is EngineState.FAILED:
            cause, detail = Cause.ENGINE_FAILED, "the engine is not running"
        elif self._state is EngineState.STOPPED:
            cause, detail = Cause.DRAINING, "the engine has stopped"
        elif self._worker.pending_commands > self._kernel.max_queued_requests + MAILBOX_SLACK:
            cause, detail = Cause.SATURATED, "too many requests wait to be queued"
        else:
            return None
        prompt = len(request.prompt)
        return Finished(cause, prompt, 0, 0, detail, retry_after=SECOND, refused=True)

    async def _until(self, *states: EngineState) -> None:
        while self._state not in states:
            self._changed.clear()
            await self._changed.wait()

    async def _drained(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _watch(self) -> None:
        """Trip when a step hangs: its thread cannot be stopped, so the engine is lost."""
        limit = self._host.step_timeout
        while True:
            await asyncio.sleep(min(1.0, limit / 4))
            since = self._worker.busy_since
            if since is not None and monotonic() - since > limit:
                self._set_state(EngineState.FAILED, f"a step did not finish within {limit:g} s")
                return

    # -- called on the engine thread -----------------------------------------------------------

    def on_outputs(self, outputs: OutputBatch) -> None:
        """Hand a step's tokens and ends to the event loop, in one call."""
        self._on_loop(self._deliver, outputs)

    def on_events(self, events: list[Event]) -> None:
        """Pass a step's events on."""
        self._events_sink(events)

    def on_state(self, state: EngineState, error: str) -> None:
        """Note a change of state."""
        self._on_loop(self._set_state, state, error)

    def on_lost(self, sequences: list[int], reason: str) -> None:
        """End streams whose sequences the kernel can no longer end."""
        self._on_loop(self._fail, sequences, reason)

    def _on_loop(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            log.warning("engine %s: its event loop is closed, so it stops", self.name)
            self._worker.abandon()

    # -- called on the event loop ----------------------------------------------------------------

    def _deliver(self, outputs: OutputBatch) -> None:
        streams, logprobs = self._streams, outputs.logprobs
        pairs = zip(outputs.sequences, outputs.tokens, strict=True)
        for index, (number, token) in enumerate(pairs):
            generation = streams.get(number)
            if generation is not None:
                generation.push_token(number, token, logprobs.get(index))
        for number, finished in outputs.ended:
            self._end(number, finished)

    def _end(self, number: int, finished: Finished) -> None:
        generation = self._streams.pop(number, None)
        if generation is not None:
            generation.push_end(number, finished)
        if not self._streams:
            self._idle.set()

    def _fail(self, sequences: list[int], reason: str) -> None:
        for number in sequences:
            self._end(number, Finished(Cause.ENGINE_FAILED, 0, 0, 0, reason))

    def _set_state(self, state: EngineState, error: str) -> None:
        if self._state is EngineState.FAILED:
            return  # final, even if a hung step comes back
        self._state = state
        self._error = error
        self._changed.set()
        if state is EngineState.FAILED:
            log.error("engine %s failed: %s", self.name, error)
            self._fail(list(self._streams), error)


def _settle(answer: asyncio.Future[Pressure], told: Pressure | Exception) -> None:
    if answer.done():
        return  # nobody waits any more
    if isinstance(told, Exception):
        answer.set_exception(told)
    else:
        answer.set_result(told)
