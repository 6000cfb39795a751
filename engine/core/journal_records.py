"""Lines of a command log back into records; `engine.core.journal` documents the form."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from engine.core.commands import Command, Submit
from engine.core.config import KernelConfig
from engine.core.journal import FORMAT, KIND
from engine.core.plain import PlainError, fields_from_plain, from_plain
from engine.core.plan import RowFailure, Sampling, StepResult

# Placeholders for tokens. TrueLengths of the simulator draws STOP and WORD too.
WORD = 2
STOP = 1
OUTSIDE = -1  # of every vocabulary


class JournalError(Exception):
    """A command log that cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line."""

    engine: str
    kernel: KernelConfig


@dataclass(frozen=True, slots=True)
class Given:
    """A command was applied; in a Submit, tokens are placeholders and hashes are aliases."""

    now: int
    command: Command


@dataclass(frozen=True, slots=True)
class Asked:
    """A step was asked for."""

    now: int


@dataclass(frozen=True, slots=True)
class Landed:
    """A step's result was committed; its tokens are placeholders."""

    now: int
    result: StepResult


@dataclass(frozen=True, slots=True)
class Grown:
    """Hashes of the blocks from number `first` on that `sequence` has filled."""

    sequence: int
    first: int
    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Noted:
    """An event, as its line without the end."""

    line: bytes


@dataclass(frozen=True, slots=True)
class Closed:
    """The recording ended in good order."""

    reason: str


Record = Given | Asked | Landed | Grown | Noted | Closed

COMMANDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Command)}


class RecordedConstraint:
    """Stands for a logits constraint, which decisions need to know of but never ask."""

    def allowed(self, output: Sequence[int]) -> Sequence[int]:
        """A replay computes nothing, so nobody asks."""
        raise JournalError(
            f"a recorded constraint cannot be asked what follows {len(output)} tokens"
        )


def read_header(line: bytes) -> Header:
    """The header in the first line of a log. Raises JournalError."""
    try:
        data = json.loads(line)
    except ValueError:
        data = None
    if not isinstance(data, dict) or data.get("log") != KIND:
        raise JournalError("this is not a command log: its first line is not a header of one")
    if data.get("format") != FORMAT:
        raise JournalError(
            f"this log has format {data.get('format')}, and this version reads format {FORMAT}: "
            "replay it with the version that recorded it"
        )
    try:
        return Header(
            str(data.get("engine")), from_plain(KernelConfig, data.get("kernel"), "kernel")
        )
    except PlainError as error:
        raise JournalError(
            f"this log is of a kernel with another configuration than this version's: {error}"
        ) from None


def read_record(line: bytes, number: int) -> Record:
    """The record in line `number` (from 1) of a log. Raises JournalError."""
    if line.startswith(b"{"):
        return Noted(line.rstrip(b"\n"))
    try:
        return _record(json.loads(line))
    except (ValueError, TypeError, IndexError, KeyError) as error:
        raise JournalError(f"line {number} is not a record of a command log: {error}") from None


def _record(data: list[Any]) -> Record:
    match data:
        case ["c", int(now), str(name), fields]:
            return Given(now, _command(name, fields))
        case ["p", int(now)]:
            return Asked(now)
        case ["r", int(now), fields]:
            return Landed(now, _result(fields))
        case ["h", int(sequence), int(first), *hashes]:
            return Grown(sequence, first, tuple(bytes.fromhex(text) for text in hashes))
        case ["z", str(reason)]:
            return Closed(reason)
    raise ValueError("it has an unknown form")


def _command(name: str, data: dict[str, Any]) -> Command:
    if name not in COMMANDS:
        raise ValueError(f"the command {name!r} is not known here")
    if name != Submit.__name__:
        command: Command = from_plain(COMMANDS[name], data, name)
        return command
    prompt, sampling = data["prompt"], data["sampling"]
    kept = {key: item for key, item in data.items() if key not in ("prompt", "sampling")}
    replaced = ("prompt", "salt", "sampling")
    return Submit(
        **fields_from_plain(Submit, kept, name, replaced),
        salt=b"",
        prompt=np.full(prompt["tokens"], 0 if prompt["in_vocabulary"] else OUTSIDE, np.int32),
        sampling=Sampling(
            temperature=0.0,
            min_tokens=sampling["min_tokens"],
            stop_token_ids=(STOP,) if sampling["stops"] else (),
            constraint=RecordedConstraint() if sampling["constraint"] else None,
        ),
    )


def _result(data: dict[str, Any]) -> StepResult:
    counts = np.asarray(data["counts"], np.int32)
    tokens = np.full(int(counts.sum()), WORD, np.int32)
    tokens[data["stops"]] = STOP
    failures = {
        int(row): from_plain(RowFailure, failure, "failure")
        for row, failure in data.get("failures", {}).items()
    }
    return StepResult(
        data["step"], counts, tokens, data["duration"], data["stall"], failures=failures
    )
