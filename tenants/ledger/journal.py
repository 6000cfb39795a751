"""One engine's usage journal on this machine's disk: written before tokens are handed out.

A file that is being written is locked by its writer; the system releases the lock however the
process ends, so whoever gets the lock of a file knows that nothing is added to it any more. A file
that has grown long is left to whoever brings usage into the store, and another one is begun.
"""

import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from errno import ENOSPC
from pathlib import Path

from telemetry.clock import Clock
from telemetry.events import Event
from telemetry.units import SECOND
from telemetry.usage import Account, Usage, UsageFold
from tenants.ledger.frames import HEADER_BYTES, encode, encode_header
from tenants.locks import try_lock

HOUR = 3600 * SECOND
RETRY = SECOND  # between attempts to write to a disk that takes nothing
SUFFIX = ".usage"

log = logging.getLogger("watermaster.usage")


class Journal:
    """`book` is called by the engine thread, `retry` and `lend` by anyone; the rest may be read.

    `live` is the id of the file being written and how many bytes of it are whole frames, header
    included. `failing` while the disk takes nothing: usage then waits in memory, where a kill would
    lose it, so no new work should be taken in.
    """

    def __init__(
        self,
        folder: Path,
        model: str,
        clock: Clock,
        file_bytes: int = 8 << 20,
        writer: str = "",
    ) -> None:
        """`writer` is this process' name among the replicas.

        Raises OSError when `folder` cannot be written, ValueError for a name too long.
        """
        self.model = model
        self.live: tuple[str, int] | None = None
        self.failing = False
        self._folder = folder
        self._writer = writer
        self._clock = clock
        self._file_bytes = file_bytes
        self._fold = UsageFold()
        self._waiting: deque[bytes] = deque()  # frames that are not written
        self._retry_at = 0
        self._lock = threading.Lock()  # on what is written and what waits
        self._file: int | None = self._begin()

    def book(self, events: Iterable[Event]) -> None:
        """Write down what `events` tell of usage. Never raises for a disk that is full or gone."""
        used = self._fold.fold(events)
        if used:
            self.append(used)

    def append(self, used: Mapping[Account, Usage]) -> None:
        """Write one frame, and those that could not be written before."""
        with self._lock:
            self._waiting.append(encode(self._clock.wall() // HOUR, used))
            if not self.failing or self._clock.now() >= self._retry_at:
                self._try_to_write()

    def retry(self) -> None:
        """Write what waits in memory, if the disk takes it again. Blocking.

        While it does not, no work is taken in, and without work there is no other frame.
        """
        with self._lock:
            if self.failing:
                self._try_to_write()

    def lend(self) -> tuple[int, str, int] | None:
        """The open file being written, for the caller to close, its id, and its bytes up to a

        frame's end. Blocking: it waits for a frame that is being written.
        One that was deleted is given out for the last time: the next frame begins another.
        """
        with self._lock:
            if self._file is None or self.live is None:
                return None
            lent = (os.dup(self._file), *self.live)
            if not os.fstat(self._file).st_nlink:
                self._leave()
            return lent

    def close(self) -> None:
        """Leave the file to whoever brings it into the store; the next frame begins another."""
        with self._lock:
            self._leave()

    def _try_to_write(self) -> None:
        try:
            self._write()
        except OSError:
            if not self.failing:
                log.exception("usage cannot be written to %s and waits in memory", self._folder)
            self.failing = True
            self._retry_at = self._clock.now() + RETRY
            self._leave()  # whoever reads the file takes a torn frame at its end for what it is
            return
        if self.failing:
            log.warning("usage is written to %s again", self._folder)
            self.failing = False
        if self.live is not None and self.live[1] >= self._file_bytes:
            self._leave()

    def _leave(self) -> None:
        if self._file is not None:
            self.live = None
            os.close(self._file)
            self._file = None

    def _write(self) -> None:
        if self._file is None:
            self._file = self._begin()
        while self._waiting:
            frame = self._waiting[0]
            done = os.write(self._file, frame)
            if done < len(frame):
                raise OSError(ENOSPC, f"only {done} of {len(frame)} bytes could be written")
            self._waiting.popleft()
            assert self.live is not None  # set with the file
            self.live = (self.live[0], self.live[1] + len(frame))

    def _begin(self) -> int:
        """A new file, locked, with its header."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            file_id = secrets.token_hex(8)
            path = self._folder / (file_id + SUFFIX)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            try:
                # Somebody may have taken it for a dead one's before it was locked.
                if try_lock(file) and os.fstat(file).st_nlink:
                    os.write(file, encode_header(file_id, self.model, self._writer))
                    self.live = (file_id, HEADER_BYTES)
                    return file
            except (OSError, ValueError):
                os.close(file)
                path.unlink(missing_ok=True)
                raise
            os.close(file)
