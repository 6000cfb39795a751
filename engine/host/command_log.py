"""Writes the command log to a file, without ever holding up the engine.

The engine thread only appends to a list. A thread of its own turns what has gathered into lines, a
few times a second and only while there is something. A log with a hole would be worth nothing, so
when the file cannot be written, has reached its bound, or the writer falls too far behind, the
recording ends and says so; serving goes on.

A log begins with a fresh kernel, for it is of no use without its beginning. Each new kernel (of a
new process, or after a fault in the kernel) begins a new file; older ones are kept as `.1`, `.2`, …
"""

import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path

from engine.core.commands import Command
from engine.core.config import KernelConfig
from engine.core.journal import KEY_BYTES, JournalEncoder
from engine.core.plan import StepPlan, StepResult
from telemetry.events import Event

log = logging.getLogger("watermaster.engine")

GATHER = 0.2  # seconds between looks at what was recorded
MAX_PENDING = 200_000  # records; minutes of a busy engine
KEPT = 2  # older logs

_Lines = Callable[[JournalEncoder], list[bytes]]


class _EndOfRecordingError(Exception):
    """Recording cannot go on; the text says why."""


@dataclass(frozen=True, slots=True)
class CommandLogConfig:
    """Where the log goes and how large it may get, in bytes."""

    path: Path
    max_bytes: int = 1 << 30


class CommandLog:
    """The log of one kernel. All methods but `close` are called by the engine thread and cheap."""

    def __init__(self, config: CommandLogConfig, kernel: KernelConfig, engine: str) -> None:
        self._config = config
        self._engine = engine
        self._encoder = JournalEncoder(kernel, secrets.token_bytes(KEY_BYTES))
        self._pending: deque[_Lines] = deque()
        self._recording = True
        self._reason = ""  # of a good end
        self._news = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"log-{engine}", daemon=True)
        self._thread.start()

    @property
    def recording(self) -> bool:
        """Whether what happens is still written down."""
        return self._recording

    def command(self, now: int, command: Command) -> None:
        """A command is about to be applied."""
        self._add(lambda encoder: [encoder.command(now, command)])

    def plan(self, now: int) -> None:
        """A step is about to be planned."""
        self._add(lambda encoder: [encoder.plan(now)])

    def result(self, now: int, plan: StepPlan, result: StepResult) -> None:
        """A result is about to be committed."""
        self._add(lambda encoder: [encoder.result(now, plan, result)])

    def events(self, events: list[Event]) -> None:
        """What was decided since the last call; the list is not to be changed afterwards."""
        self._add(lambda encoder: encoder.events(events))

    def close(self, reason: str, timeout: float = 5.0) -> None:
        """End the log; waits at most `timeout` seconds for it to be written."""
        self._reason = reason
        self._closing.set()
        self._news.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("the command log %s is not complete: its disk is too slow", self._path)

    @property
    def _path(self) -> Path:
        return self._config.path

    def _add(self, lines: _Lines) -> None:
        if len(self._pending) >= MAX_PENDING:
            self._recording = False
        if self._recording:
            self._pending.append(lines)
            self._news.set()

    # -- called on the writer's thread -----------------------------------------------------------

    def _main(self) -> None:
        try:
            _make_room_for(self._path)
            with _create(self._path) as file:
                self._write(file)
        except OSError as error:
            self._give_up(f"{error.strerror or error}")
        except _EndOfRecordingError as end:
            self._give_up(str(end))
        except Exception:
            log.exception("recording failed")
            self._give_up("of a fault in the recorder")

    def _give_up(self, why: str) -> None:
        self._recording = False
        self._pending.clear()
        log.error("the command log %s ends, serving goes on: %s", self._path, why)

    def _write(self, file: BufferedWriter) -> None:
        file.write(self._encoder.header(self._engine))
        while True:
            self._news.wait()
            self._closing.wait(GATHER)
            self._news.clear()
            last = self._closing.is_set()
            self._drain(file)
            if not self._recording:
                self._stop(file, "it cannot be written as fast as the engine works")
            if last:
                file.write(self._encoder.end(self._reason))
                return
            if file.tell() >= self._config.max_bytes:
                self._recording = False
                self._stop(file, f"it has reached its largest size, {file.tell()} bytes")

    def _stop(self, file: BufferedWriter, why: str) -> None:
        file.write(self._encoder.end(why))
        raise _EndOfRecordingError(why)

    def _drain(self, file: BufferedWriter) -> None:
        """Write what has gathered."""
        for _ in range(len(self._pending)):
            file.writelines(self._pending.popleft()(self._encoder))
        file.flush()


def _make_room_for(path: Path) -> None:
    """Rename older logs; the oldest is overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [path, *(path.with_name(f"{path.name}.{age}") for age in range(1, KEPT + 1))]
    for older, newer in zip(reversed(names), list(reversed(names))[1:], strict=False):
        if newer.exists():
            newer.replace(older)


def _create(path: Path) -> BufferedWriter:
    """A new file that only its owner may read, since it tells who calls."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
