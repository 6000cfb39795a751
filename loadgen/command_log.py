"""Reads command logs and repeats them, comparing every decision with the recorded one."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.core.journal import STOPPED
from engine.core.journal_records import (
    Asked,
    Closed,
    Given,
    Grown,
    Header,
    JournalError,
    Landed,
    Noted,
    Record,
    read_header,
    read_record,
)
from engine.core.plan import StepPlan
from engine.core.replay import OutOfStepError, Replay
from telemetry.event_log import encode
from telemetry.events import Event

Watch = Callable[[Given | Asked | Landed, StepPlan | None], None]


class ReplayedFaultError(Exception):
    """The kernel itself raised during a replay. `line` is that of the record it was given."""

    def __init__(self, line: int, error: Exception) -> None:
        super().__init__(f"line {line}: {error!r}")
        self.line = line


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision that differs, as lines of the event log; None where there is none."""

    line: int  # of the log
    recorded: str | None
    replayed: str | None


@dataclass(slots=True)
class Verdict:
    """What a replay came to. `end` says why the recording ended, None if it broke off."""

    header: Header
    steps: int = 0
    events: int = 0
    end: str | None = None
    lines: int = 1
    difference: Difference | None = None


class CommandLogFile:
    """One log on disk, read line by line as often as needed."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises JournalError."""
        self.path = path
        try:
            with path.open("rb") as file:
                self.header = read_header(file.readline())
        except OSError as error:
            raise JournalError(f"cannot read {path}: {error.strerror}") from None

    def records(self) -> Iterator[tuple[int, Record]]:
        """Every complete record with its line number. Raises JournalError for a broken one.

        A last line without its end was cut off while it was written; it is left out.
        """
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number > 1 and line.endswith(b"\n"):
                    yield number, read_record(line, number)

    def generated(self) -> dict[int, tuple[int, list[bytes]]]:
        """The hashes of the blocks that each sequence generated, and the number of the first."""
        found: dict[int, tuple[int, list[bytes]]] = {}
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.startswith(b'["h"') and line.endswith(b"\n"):
                    record = read_record(line, number)
                    if isinstance(record, Grown):
                        start = (record.first, list[bytes]())
                        found.setdefault(record.sequence, start)[1].extend(record.hashes)
        return found


class Verifier:
    """Repeats one log and stops at the first decision that is not the recorded one."""

    def __init__(self, log: CommandLogFile, watch: Watch = lambda _record, _plan: None) -> None:
        """`watch` sees each record that was repeated, and the plan that was made or landed."""
        self._log = log
        self._watch = watch
        self._replay = Replay(log.header.kernel, log.generated())
        self._decided: deque[Event] = deque()  # not compared yet
        self._lost: OutOfStepError | None = None
        self.commands: list[Given] = []
        self.events: list[Event] = []
        self.verdict = Verdict(log.header)

    def run(self) -> Verdict:
        """Raises JournalError for a broken log, ReplayedFaultError when the kernel raises."""
        verdict = self.verdict
        for number, record in self._log.records():
            verdict.lines = number
            match record:
                case Closed(reason):
                    verdict.end = reason
                case Noted(line):
                    self._compare(line)
                case Given() | Asked() | Landed():
                    self._repeat(record, number)
            if verdict.difference:
                return verdict
        if self._lost:
            raise JournalError(str(self._lost))
        if self._decided and verdict.end == STOPPED:
            self._compare(None)
        return verdict

    def _repeat(self, record: Given | Asked | Landed, number: int) -> None:
        if self._lost:
            return  # the difference is in the events that follow
        if isinstance(record, Given):
            self.commands.append(record)
        try:
            plan = self._replay.repeat(record)
        except OutOfStepError as error:
            self._lost = error
        except Exception as error:
            raise ReplayedFaultError(number, error) from error
        self._watch(record, plan)
        decided = self._replay.take_events()
        self.events += decided
        self._decided += decided
        self.verdict.steps = self._replay.steps

    def _compare(self, recorded: bytes | None) -> None:
        replayed = encode(self._decided.popleft()) if self._decided else None
        if recorded == replayed:
            self.verdict.events += 1
        else:
            self.verdict.difference = Difference(
                self.verdict.lines, _text(recorded), _text(replayed)
            )


def _text(line: bytes | None) -> str | None:
    return None if line is None else line.decode(errors="replace")
