"""Reading usage journals back: files and stretches of them. Blocking; call it in a thread."""

import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from telemetry.usage import Usage
from tenants.ledger.damaged import put_aside
from tenants.ledger.frames import (
    HEADER_BYTES,
    NotAJournalError,
    OtherVersionError,
    decode,
    decode_header,
)
from tenants.ledger.journal import SUFFIX
from tenants.locks import try_lock

CHUNK = 1 << 20  # bytes read at a time
ROWS = 2000  # after which a stretch ends

log = logging.getLogger("watermaster.usage")


class Slot(NamedTuple):
    """What usage is summed up by in one file; `hour` is hours since the Unix epoch."""

    tenant: str
    key: str
    hour: int


@dataclass(slots=True)
class Stretch:
    """The sums of whole frames up to offset `end`, counted from the end of the file's header."""

    end: int
    sums: dict[Slot, Usage] = field(default_factory=lambda: defaultdict(Usage))


@dataclass(frozen=True, slots=True)
class Source:
    """An open journal file; `until` is the offset up to which it may be read. `writer` is the name

    of the process that wrote it.
    """

    file: int
    file_id: str
    model: str
    writer: str
    until: int


def names(folder: Path) -> list[str]:
    """The ids of the files in `folder`; none when it is not there."""
    if not folder.is_dir():
        return []
    return sorted(
        entry.name.removesuffix(SUFFIX)
        for entry in os.scandir(folder)
        if entry.name.endswith(SUFFIX)
    )


def path_of(folder: Path, file_id: str) -> Path:
    return folder / (file_id + SUFFIX)


@contextmanager
def opened(lent: tuple[int, str, int] | None, model: str, writer: str) -> Iterator[Source | None]:
    """The file that this process, called `writer`, is writing, as its journal `lent` it."""
    if lent is None:
        yield None
        return
    file, file_id, written = lent
    try:
        yield Source(file, file_id, model, writer, written - HEADER_BYTES)
    finally:
        os.close(file)


@contextmanager
def claimed(folder: Path, file_id: str) -> Iterator[Source | None]:
    """A file nobody writes any more, as ours for now; None when there is no such file.

    What is no journal is put aside, except what was killed before its header was written. One that
    another version of Watermaster writes is left to it.
    """
    path = path_of(folder, file_id)
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # somebody else was quicker
        yield None
        return
    try:
        yield _source(path, file) if try_lock(file) else None
    finally:
        os.close(file)


def left_behind(folder: Path, added: Mapping[str, int]) -> int:
    """Bytes of frames in files that nobody writes any more, beyond the offsets in `added`."""
    total = 0
    for file_id in names(folder):
        with claimed(folder, file_id) as source:
            if source is not None:
                total += source.until - added.get(source.file_id, 0)
    return total


def writers(folder: Path) -> set[str]:
    """Of all files that are there, being written or not."""
    found = set()
    for file_id in names(folder):
        try:
            with path_of(folder, file_id).open("rb") as file:
                found.add(decode_header(file.read(HEADER_BYTES))[2])
        except (FileNotFoundError, NotAJournalError):
            log.debug("%s is gone, or not begun", file_id)
    return found


def _source(path: Path, file: int) -> Source | None:
    size = os.fstat(file).st_size
    try:
        file_id, model, writer = decode_header(os.pread(file, HEADER_BYTES, 0))
    except OtherVersionError as error:
        _leave(path, str(error))
        return None
    except NotAJournalError as error:
        if size < HEADER_BYTES:
            path.unlink(missing_ok=True)
        else:
            put_aside(path, error)
        return None
    return Source(file, file_id, model, writer, size - HEADER_BYTES)


@cache
def _leave(path: Path, why: str) -> None:
    """Say once that a file stays where it is."""
    log.error("%s waits for a server that can read it: %s", path, why)


def read(source: Source, at: int) -> Stretch:
    """Sum up frames from offset `at` on; an `end` of `at` means that there are no more."""
    size = CHUNK
    while True:
        wanted = min(size, source.until - at)
        decoded = decode(os.pread(source.file, wanted, HEADER_BYTES + at), at)
        if decoded.frames or wanted == source.until - at:
            break
        size *= 2  # one frame is larger than that
    stretch = Stretch(at)
    for frame in decoded.frames:
        for account, usage in frame.used.items():
            stretch.sums[Slot(*account, frame.hour)].add(usage)
        stretch.end = frame.end
        if len(stretch.sums) >= ROWS:
            break
    if decoded.damaged:
        log.error("%d bytes of usage journal %s are damaged", decoded.damaged, source.file_id)
    return stretch
