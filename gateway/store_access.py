"""The server's way to its store: it follows what changes there and looks after the embedded one."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.config import StoreSettings
from gateway.courier import Courier
from gateway.informant import Informant
from gateway.inquirer import Inquirer
from gateway.store_health import StoreHealth
from telemetry.clock import Clock
from tenants.auth import Authenticator
from tenants.connection import cancelled
from tenants.departed import Departed
from tenants.embedded import EmbeddedStoreError, EmbeddedValkey
from tenants.eviction import eviction_policy
from tenants.leases import Leases
from tenants.questions import Question, Questions
from tenants.replica import claim
from tenants.servers import Servers
from tenants.store import SchemaMismatch, Store, StoreUnavailable

STORE_CHECK_SECONDS = 1.0  # known keys go on working meanwhile

EMPTIED = (
    "the store was emptied: its tenants, keys and budgets are gone, and every key is refused; "
    "bring its data back, or create them anew"
)

EVICTING = (
    "the store has maxmemory-policy %s and throws tenants, keys, budgets and usage away once its "
    "memory is full: set it to noeviction"
)

logger = logging.getLogger("watermaster")


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The store, who reads keys from it, and whether it answers."""

    store: Store
    authenticator: Authenticator
    health: StoreHealth
    leases: Leases
    courier: Courier
    servers: Servers
    inquirer: Inquirer
    informant: Informant
    departed: Departed

    @property
    def alone(self) -> bool:
        """Whether no other server is on the store. Older ones than its list are only heard."""
        return self.servers.alone and self.courier.alone


@asynccontextmanager
async def open_store(settings: StoreSettings, clock: Clock) -> AsyncIterator[StoreAccess]:
    """The configured store, or the embedded one, which stops last unless others use it."""
    places = settings.data_dir / "replicas"
    if settings.url:
        replica = await asyncio.to_thread(claim, places)
        departed = Departed(replica, places)
        async with connected(settings.url, clock, departed, settings.lease) as access:
            yield access
        return
    embedded = EmbeddedValkey(settings.data_dir)
    try:
        url = await asyncio.to_thread(embedded.start)
        replica = await asyncio.to_thread(claim, places)
        departed = Departed(replica, places)
        async with connected(url, clock, departed, settings.lease, embedded) as access:
            yield access
    finally:
        await asyncio.to_thread(embedded.stop)


@asynccontextmanager
async def connected(
    url: str,
    clock: Clock,
    departed: Departed,
    lease: float,
    embedded: EmbeddedValkey | None = None,
) -> AsyncIterator[StoreAccess]:
    """The store at `url`, followed and watched; `embedded` is started again when it is gone.

    What this replica leases of tenants' limits is good for `lease` seconds without the store.
    """
    store = await Store.connect(url)
    policy = await eviction_policy(store.connection)
    if policy:
        logger.warning(EVICTING, policy)
    leases = Leases(store.connection, clock, departed, lease)
    courier = Courier(store.cancellations)
    health = StoreHealth(clock)
    authenticator = Authenticator(store, clock, lambda: health.away)
    own = departed.replica.name
    questions, servers = Questions(store.connection, own), Servers(store.connection, own)
    inquirer = Inquirer(questions, servers, lambda: access.alone, lambda: health.away)
    informant = Informant(questions, own)
    access = StoreAccess(
        store, authenticator, health, leases, courier, servers, inquirer, informant, departed
    )

    def hear(question: Question) -> None:
        inquirer.hear(question)
        informant.hear(question)

    tasks = [
        asyncio.create_task(store.follow(access.authenticator.forget)),
        asyncio.create_task(_watch(access, embedded)),
        asyncio.create_task(leases.run()),
        asyncio.create_task(store.cancellations.follow(courier.hear)),
        asyncio.create_task(courier.run()),
        asyncio.create_task(servers.follow()),
        asyncio.create_task(servers.run()),
        asyncio.create_task(questions.follow(hear, inquirer.take)),
    ]
    try:
        yield access
    finally:
        await cancelled(*tasks)
        await servers.leave()
        await leases.close()
        await store.close()


async def _watch(access: StoreAccess, embedded: EmbeddedValkey | None) -> None:
    """Notice that the store went away, came back or was emptied.

    Nobody else looks after an embedded one.
    """
    while True:
        try:
            if await access.store.check():
                logger.error(EMPTIED)
            if access.health.answered():
                logger.info("the store answers again")
        except SchemaMismatch as changed:
            if access.health.lost():
                logger.warning("the store is as good as away: %s", changed)
        except StoreUnavailable as lost:
            if access.health.lost():
                logger.warning("the store is away: %s", lost)
            if embedded is not None:
                await _start_again(embedded)
        await asyncio.sleep(STORE_CHECK_SECONDS)


async def _start_again(embedded: EmbeddedValkey) -> None:
    try:
        await asyncio.to_thread(embedded.start)
    except EmbeddedStoreError as error:
        logger.warning("the embedded store does not start: %s", error)
