"""The engine thread: the kernel's single writer, and what happens when something under it dies."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from engine.core.commands import Command, ExecutorLost, Submit
from engine.core.config import KernelConfig
from engine.core.executor import Executor
from engine.core.journal import STOPPED
from engine.core.loop import EngineLoop, ExecutorFailedError
from engine.core.outputs import OutputBatch
from engine.core.pressure import Inquiry, Pressure
from engine.core.scheduler import Scheduler
from engine.host.command_log import CommandLog, CommandLogConfig
from telemetry.clock import Clock
from telemetry.events import Event
from telemetry.units import SECOND

log = logging.getLogger("watermaster.engine")

RESTART_WINDOW = 600.0  # seconds in which `max_restarts` are counted
IDLE_WAIT = 1.0  # seconds between looks at the clock while nothing happens
MOST_ANSWERS = 2  # to those who ask how they stand, in one iteration; each takes up to a ms

AnyExecutor = Executor[Any]
Book = Callable[[list[Event]], None]
Fault = tuple[str, Callable[[str], None]]  # what happened, and who fails what it took down


def keep_no_book(_events: list[Event]) -> None:
    """For whoever bills nobody."""


class EngineState(StrEnum):
    """Life of an engine, as told to people."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"  # beyond recovery; the process should exit
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Load:
    """Counters of the kernel as of its last iteration."""

    running: int = 0
    waiting: int = 0
    queued_tokens: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0


class Listener(Protocol):
    """Who is told what the thread does. Called on the engine thread: must return at once."""

    def on_outputs(self, outputs: OutputBatch) -> None:
        """Tokens and ends of one command batch or step."""

    def on_events(self, events: list[Event]) -> None:
        """Decisions of one command batch or step."""

    def on_state(self, state: EngineState, error: str) -> None:
        """The engine's state changed."""

    def on_lost(self, sequences: list[int], reason: str) -> None:
        """These sequences are gone without a terminal output of the kernel's."""


class EngineWorker:
    """Runs the engine loop on a thread of its own until stopped or beyond recovery."""

    def __init__(
        self,
        name: str,
        config: KernelConfig,
        factory: Callable[[], AnyExecutor],
        clock: Clock,
        listener: Listener,
        max_restarts: int,
        command_log: CommandLogConfig | None = None,
        book: Book = keep_no_book,
    ) -> None:
        self.load = Load(free_blocks=config.num_blocks)
        self.busy_since: float | None = None  # time.monotonic() at the start of the iteration
        self.restarts = 0
        self._name = name
        self._config = config
        self._factory = factory
        self._clock = clock
        self._listener = listener
        self._max_restarts = max_restarts
        self._failures: deque[float] = deque(maxlen=max_restarts + 1)
        self._command_log = command_log
        self._log: CommandLog | None = None
        self._book = book
        self._scheduler = Scheduler(config)
        self._mailbox: deque[Command] = deque()
        self._questions: deque[tuple[Inquiry, Callable[[Pressure | Exception], None]]] = deque()
        self._applying: list[Command] = []
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name=f"engine-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread; it builds its executor first."""
        self._thread.start()

    def post(self, command: Command) -> None:
        """Hand over a command; safe from any thread."""
        self._mailbox.append(command)
        if not self._wake.is_set():  # else the thread has yet to clear it, and looks after that
            self._wake.set()

    def ask(self, inquiry: Inquiry, answer: Callable[[Pressure | Exception], None]) -> None:
        """Have `answer` called on the thread after its next iteration; safe from any thread."""
        self._questions.append((inquiry, answer))
        self._wake.set()

    @property
    def pending_commands(self) -> int:
        """Commands that the thread has not looked at yet."""
        return len(self._mailbox)

    def stop(self, timeout: float) -> None:
        """End the thread after its current iteration; waits for it at most `timeout` seconds."""
        self.abandon()
        self._thread.join(timeout)

    def abandon(self) -> None:
        """Let the thread end after its current iteration, without waiting for it."""
        self._stopping = True
        self._wake.set()

    def _main(self) -> None:
        executor = self._build("could not start")
        self._open_log()
        while executor is not None:
            self._listener.on_state(EngineState.READY, "")
            fault = self._serve(executor)
            executor = None  # a card has no room for the next one beside it
            if fault is not None:
                executor = self._recover(*fault)
        self._close_log(STOPPED)

    def _serve(self, executor: AnyExecutor) -> Fault | None:
        """Iterate until told to stop (None) or until a new executor is needed."""
        loop = EngineLoop(self._scheduler, executor, self._clock.now, self._log)
        try:
            while not self._stopping:
                self._iterate(loop)
        except ExecutorFailedError as error:
            log.exception("engine %s lost its executor", self._name)
            return str(error), self._fail_running
        except Exception as error:
            log.exception("engine %s: fault in the kernel", self._name)
            return f"fault in the kernel: {error!r}", self._fail_all
        self._listener.on_state(EngineState.STOPPED, "")
        return None

    def _iterate(self, loop: EngineLoop[Any]) -> None:
        self.busy_since = time.monotonic()
        self._applying = [self._mailbox.popleft() for _ in range(len(self._mailbox))]
        worked = loop.iterate(self._applying)
        self.busy_since = None
        self._publish()
        if self._questions:
            self._answer()
        if not worked and not self._mailbox and not self._questions:
            self._sleep()

    def _publish(self) -> None:
        scheduler = self._scheduler
        self.load = Load(
            running=scheduler.running,
            waiting=scheduler.waiting,
            queued_tokens=scheduler.backlog.tokens,
            free_blocks=scheduler.free_blocks,
            cached_blocks=scheduler.cached_blocks,
        )
        outputs, events = scheduler.take_outputs(), scheduler.take_events()
        if events:
            if self._log:
                self._log.events(events)
            self._book(events)  # before anybody is handed what it counts
            self._listener.on_events(events)
        if outputs:
            self._listener.on_outputs(outputs)

    def _answer(self) -> None:
        """Tell those who ask how they stand; whatever goes wrong with that is theirs alone."""
        for _ in range(min(len(self._questions), MOST_ANSWERS)):
            inquiry, answer = self._questions.popleft()
            try:
                answer(self._scheduler.pressure(inquiry, self._clock.now()))
            except Exception as error:
                log.exception("engine %s cannot say how a tenant stands", self._name)
                answer(error)

    def _sleep(self) -> None:
        timeout = IDLE_WAIT
        now = self._clock.now()
        wakeup = self._scheduler.next_wakeup(now)
        if wakeup is not None:
            timeout = min(timeout, max(0.0, (wakeup - now) / SECOND))
        self._wake.wait(timeout)
        self._wake.clear()

    def _recover(self, reason: str, fail: Callable[[str], None]) -> AnyExecutor | None:
        """Fail what is lost and build a new executor, a bounded number of times in a while."""
        self.busy_since = None
        self.restarts += 1
        now = time.monotonic()
        self._failures.append(now)
        recent = sum(1 for at in self._failures if now - at < RESTART_WINDOW)
        if recent > self._max_restarts:
            self._close_log(reason)
            self._listener.on_state(EngineState.FAILED, f"failed {recent} times; last: {reason}")
            return None
        self._listener.on_state(EngineState.RESTARTING, reason)
        fail(reason)
        return self._build("could not restart")

    def _build(self, failure: str) -> AnyExecutor | None:
        try:
            return self._factory()
        except Exception as error:
            log.exception("engine %s %s", self._name, failure)
            self._listener.on_state(EngineState.FAILED, f"{failure}: {error}")
            return None

    def _fail_running(self, reason: str) -> None:
        command, now = ExecutorLost(reason), self._clock.now()
        if self._log:
            self._log.command(now, command)
        self._scheduler.apply(command, now)
        self._publish()

    def _fail_all(self, reason: str) -> None:
        """The kernel's state cannot be trusted: start over, losing what waited too."""
        self._close_log(reason)  # first: the ends below are not the kernel's decisions
        self._scheduler.condemn(reason, self._clock.now())
        self._publish()
        # Those that came with the fault may never have reached the kernel.
        submits = [command for command in self._applying if isinstance(command, Submit)]
        self._listener.on_lost([n for submit in submits for n in submit.sequences], reason)
        self._scheduler = Scheduler(self._config)
        self._open_log()

    def _open_log(self) -> None:
        """Each kernel has a log of its own, from its first command on."""
        if self._command_log:
            self._log = CommandLog(self._command_log, self._config, self._name)

    def _close_log(self, reason: str) -> None:
        if self._log:
            self._log.close(reason)
            self._log = None
