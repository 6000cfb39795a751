"""The server's way to its store, and its care for the embedded one."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.config import StoreSettings
from tenants.embedded import EmbeddedStoreError, EmbeddedValkey
from tenants.store import Store, StoreUnavailable

STORE_CHECK_SECONDS = 2.0  # known keys go on working meanwhile

logger = logging.getLogger("watermaster")


@asynccontextmanager
async def open_store(settings: StoreSettings) -> AsyncIterator[Store]:
    """The configured store, or the embedded one, which stops last unless others use it."""
    if settings.url:
        async with _connected(settings.url) as store:
            yield store
        return
    embedded = EmbeddedValkey(settings.data_dir)
    try:
        async with _connected(await asyncio.to_thread(embedded.start)) as store:
            care = asyncio.create_task(_keep_running(embedded, store))
            try:
                yield store
            finally:
                care.cancel()
    finally:
        await asyncio.to_thread(embedded.stop)


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Store]:
    store = await Store.connect(url)
    try:
        yield store
    finally:
        await store.close()


async def _keep_running(embedded: EmbeddedValkey, store: Store) -> None:
    """Start the embedded store again when it is gone, since nobody else looks after it."""
    while True:
        await asyncio.sleep(STORE_CHECK_SECONDS)
        try:
            await store.ping()
        except StoreUnavailable as lost:
            logger.warning("the embedded store is gone and is started again: %s", lost)
            try:
                await asyncio.to_thread(embedded.start)
            except EmbeddedStoreError as error:
                logger.warning("the embedded store does not start: %s", error)
