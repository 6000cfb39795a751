"""Brings usage from the journals on disk into the store, each stretch once.

What a process that was killed has left behind is brought in too, by whoever finds it first. Until
a file is added to its last byte it stays on the disk, so a store that is away costs only time.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type
from tenacity.wait import wait_random_exponential

from telemetry.clock import Clock
from telemetry.measures import Counter, Gauge, text_of
from telemetry.units import SECOND
from tenants.connection import StoreError, StoreUnavailable, cancelled
from tenants.departed import Departed
from tenants.ledger.damaged import prune
from tenants.ledger.frames import HEADER_BYTES
from tenants.ledger.journal import Journal
from tenants.ledger.leftovers import (
    Source,
    claimed,
    left_behind,
    names,
    opened,
    path_of,
    read,
    writers,
)
from tenants.ledger.usage_store import UsageStore
from tenants.prices import FREE, Price

LONGEST_PAUSE = 5.0  # seconds between attempts while the store is away

log = logging.getLogger("watermaster.usage")


@dataclass(frozen=True, slots=True)
class LedgerConfig:
    """`interval` seconds pass between flushes; `most_bytes` of the journal may wait for one.

    A journal's file is followed by another when it has `file_bytes`.
    """

    folder: Path
    interval: float = 1.0
    most_bytes: int = 1 << 30
    file_bytes: int = 8 << 20


class Ledger:
    """The usage of one process's engines. Lives on one event loop; create it there."""

    def __init__(
        self,
        config: LedgerConfig,
        store: UsageStore,
        clock: Clock,
        departed: Departed | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._departed = departed
        self._writer = departed.replica.name if departed else ""
        self._journals: list[Journal] = []
        self._prices: dict[str, Price] = {}
        self._turn = asyncio.Lock()
        self._added: dict[str, int] = {}  # file id -> offset, of files that are being written
        self._left = 0  # bytes of other files that wait
        self._away = False
        self._stored_at = clock.now()
        self._pending_bytes = Gauge(
            "watermaster_usage_journal_pending_bytes", "Usage on this machine's disk alone"
        )
        self._lag = Gauge(
            "watermaster_usage_flush_lag_seconds",
            "Age of the oldest usage that may not be in the store; 0 when all is",
        )
        self._failures = Counter(
            "watermaster_usage_flush_failures", "Attempts to bring usage into the store in vain"
        )
        self._failures.add(0)

    def journal(self, model: str, price: Price) -> Journal:
        """The journal of a further engine, which serves `model` at `price`. Raises StoreError."""
        config = self._config
        try:
            journal = Journal(config.folder, model, self._clock, config.file_bytes, self._writer)
        except OSError as error:
            raise StoreError(
                f"usage cannot be written down in {config.folder}: {error.strerror or error}"
            ) from error
        self._journals.append(journal)
        self._prices[model] = price
        return journal

    @property
    def store(self) -> UsageStore:
        return self._store

    @property
    def pending_bytes(self) -> int:
        """Bytes of the journal that are not in the store, as far as this process knows."""
        live = [journal.live for journal in self._journals]
        return self._left + sum(
            written - HEADER_BYTES - self._added.get(file_id, 0)
            for file_id, written in filter(None, live)
        )

    @property
    def lag_seconds(self) -> float:
        """How old the oldest usage is that may not be in the store."""
        if not self.pending_bytes:
            return 0.0
        return (self._clock.now() - self._stored_at) / SECOND

    @property
    def full(self) -> bool:
        """Whether new work would be work whose usage may be lost, or without end."""
        failing = any(journal.failing for journal in self._journals)
        return failing or self.pending_bytes > self._config.most_bytes

    def describe(self) -> dict[str, object]:
        """For `/ready`, JSON-ready."""
        if any(journal.failing for journal in self._journals):
            state = "in memory"
        else:
            state = "journaled" if self._away else "stored"
        lag = round(self.lag_seconds, 1)
        return {"state": state, "pending_bytes": self.pending_bytes, "lag_seconds": lag}

    def metrics(self) -> bytes:
        """In Prometheus' text form."""
        self._pending_bytes.set(self.pending_bytes)
        self._lag.set(self.lag_seconds)
        return text_of((self._pending_bytes, self._lag, self._failures))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Flush meanwhile, and once more at the end, when the engines are to have stopped."""
        await asyncio.to_thread(prune, self._config.folder)
        flushing = asyncio.create_task(self._run())
        try:
            yield
        finally:
            await cancelled(flushing)
            for journal in self._journals:
                await asyncio.to_thread(self._end, journal)
            try:
                await self.flush()
            except (StoreUnavailable, OSError) as error:
                log.warning("usage waits in %s for the next start: %s", self._config.folder, error)

    def _end(self, journal: Journal) -> None:
        journal.retry()
        journal.close()
        if journal.failing:
            log.error(
                "usage of %s that could not be written to %s is lost",
                *(journal.model, self._config.folder),
            )

    async def _run(self) -> None:
        """Flush for ever, less often while the store is away."""
        retrying = AsyncRetrying(
            wait=wait_random_exponential(multiplier=self._config.interval, max=LONGEST_PAUSE),
            retry=retry_if_exception_type(),  # whatever it was, usage is worth another attempt
            before_sleep=self._tell,
        )
        while True:
            await retrying(self.flush)
            await asyncio.sleep(self._config.interval)

    async def flush(self) -> None:
        """Bring everything into the store that is in the journals now.

        Raises StoreUnavailable, or OSError for journals that cannot be read.
        """
        async with self._turn:
            await self._flush()

    async def catch_up(self) -> None:
        """The same for a reader, who gives up at once while the store is known to be away.

        Readers that ask at the same time share a flush.
        """
        if self._away:
            raise StoreUnavailable("the store was away a moment ago")
        asked = self._clock.now()
        async with self._turn:
            if self._stored_at < asked:
                await self._flush()

    async def _flush(self) -> None:
        began = self._clock.now()
        for journal in self._journals:
            if journal.failing:
                await asyncio.to_thread(journal.retry)
        try:
            for journal in self._journals:
                await self._flush_live(journal)
            await self._flush_leftovers()
        except (StoreUnavailable, OSError):
            self._failures.add(1)
            self._away = True
            self._left = await asyncio.to_thread(left_behind, self._config.folder, self._added)
            raise
        live = dict(filter(None, (journal.live for journal in self._journals)))
        self._added = {name: at for name, at in self._added.items() if name in live}
        self._left = 0
        self._away = False
        self._stored_at = began

    def _tell(self, attempt: RetryCallState) -> None:
        """Once for each time that it goes wrong."""
        if attempt.attempt_number == 1 and attempt.outcome is not None:
            error = attempt.outcome.exception()
            trace = None if isinstance(error, StoreError) else error
            log.warning("usage waits in %s: %s", self._config.folder, error, exc_info=trace)

    async def _flush_live(self, journal: Journal) -> None:
        lent = await asyncio.to_thread(journal.lend)
        with opened(lent, journal.model, self._writer) as source:
            if source is None or source.until <= self._added.get(source.file_id, 0):
                return
            try:
                await self._add(source)
            finally:
                deleted = not os.fstat(source.file).st_nlink
                if deleted and source.until > self._added.get(source.file_id, 0):
                    log.error("usage of %s is lost: its file was deleted", journal.model)

    async def _flush_leftovers(self) -> None:
        """Those of ended processes, and our own that have grown long."""
        departed, folder = self._departed, self._config.folder
        dead = await asyncio.to_thread(departed.look) if departed else []
        await self._add_leftovers()
        if departed:
            departed.settle(dead, await asyncio.to_thread(writers, folder))

    async def _add_leftovers(self) -> None:
        for file_id in await asyncio.to_thread(names, self._config.folder):
            with claimed(self._config.folder, file_id) as source:
                if source is not None:
                    await self._add(source)
                    path_of(self._config.folder, file_id).unlink(missing_ok=True)
                    await self._store.forget(source.file_id)
                    self._added.pop(source.file_id, None)

    async def _add(self, source: Source) -> None:
        at = self._added.get(source.file_id)
        if at is None:
            at = await self._store.position(source.file_id)
        price = self._prices.get(source.model, FREE)
        while at < source.until:
            stretch = await asyncio.to_thread(read, source, at)
            if stretch.end == at:
                break
            at = await self._store.add(source, at, stretch, price)
            self._added[source.file_id] = at
