"""Commands' way to the store: the configured one, or the embedded one, started when needed."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from getpass import getuser
from socket import gethostname
from typing import TYPE_CHECKING, TypeVar

from gateway.cli.common import CliError, Exit

if TYPE_CHECKING:
    from gateway.config import StoreSettings
    from tenants.store import Store

PATIENCE = 2.0  # seconds for the store to answer: a person waits

T = TypeVar("T")


def with_store(settings: "StoreSettings", action: Callable[["Store"], Awaitable[T]]) -> T:
    """Run `action` on the store and return its result; every failure becomes a CliError."""
    from tenants.embedded import EmbeddedStoreError
    from tenants.model import InvalidRecord
    from tenants.store import AlreadyExists, KeyNotActive, NotFound, StoreError

    try:
        with _url(settings) as url:
            return asyncio.run(_run(url, action))
    except (NotFound, AlreadyExists, KeyNotActive, InvalidRecord) as error:
        raise CliError(str(error)) from None
    except (StoreError, EmbeddedStoreError) as error:
        raise CliError(str(error), Exit.STORE) from None


@contextmanager
def _url(settings: "StoreSettings") -> Iterator[str]:
    """The store's URL; an embedded one stops at the end unless a server uses it too."""
    from tenants.embedded import EmbeddedValkey

    if settings.url:
        yield settings.url
        return
    embedded = EmbeddedValkey(settings.data_dir)
    url = embedded.start()
    try:
        yield url
    finally:
        embedded.stop()


def _person() -> str:
    """Who runs the command, for the store's log of changes."""
    try:
        user = getuser()
    except (KeyError, OSError):  # nobody has given the number a name
        user = str(os.getuid())
    return f"cli {user}@{gethostname()}"


async def _run(url: str, action: Callable[["Store"], Awaitable[T]]) -> T:
    from tenants.store import Store

    store = await Store.connect(url, patience=PATIENCE)
    try:
        return await action(store.acting_as(_person()))
    finally:
        await store.close()
