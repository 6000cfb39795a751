"""The connection to the store: one pool, retries, and one kind of error for a store away.

Any single Redis (6.2 or later) or Valkey server, with or without replicas; not Redis Cluster,
since a script may reach a record whose name it finds in another.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

from redis import asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from tenacity import (
    AsyncRetrying,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
)
from tenacity.stop import stop_base
from tenacity.wait import wait_random_exponential

from tenants.scripts import sources

_CONNECTIONS = 16
_ANSWER_SECONDS = 2.0  # scripts take microseconds; a server later than this is not there
_CANCEL_SECONDS = 0.2  # after which a cancellation is taken for swallowed
_SILENCE_SECONDS = 5.0  # after which a subscription is asked whether it still stands
# A server that was restarted is found again without the caller noticing; one that hangs costs
# the caller one timeout, not three.
_PERSISTENCE = stop_after_attempt(3) | stop_after_delay(_ANSWER_SECONDS)
_PAUSE = wait_random_exponential(multiplier=0.02, max=0.5)

# Of any other path the client takes what digits there are for the database, or 0.
_NO_DATABASE = re.compile(r"rediss?://[^/?#]*/(?!\d*(?:[?#]|$))")

# What a URL must not change.
_OURS: dict[str, Any] = {
    "decode_responses": True,
    "encoding": "utf-8",
    "encoding_errors": "replace",  # who reads a damaged record finds the fault in it
    "protocol": 2,
    "retry": Retry(NoBackoff(), 0),  # tenacity does it
}

T = TypeVar("T")


class StoreError(Exception):
    """The base of everything the store raises."""


class StoreUnavailable(StoreError):  # noqa: N818 - reads better without
    """The store cannot be reached, or cannot do what it was asked. Trying later may help."""


async def _nothing() -> None: ...


def _pool(url: str) -> redis.BlockingConnectionPool:
    """Connections to `url`, none of them open yet. Raises StoreError.

    It quotes nothing, since the URL may hold a password.
    """
    try:
        if _NO_DATABASE.match(url):
            raise ValueError("the database is no number")
        pool = redis.BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=_ANSWER_SECONDS,
            socket_timeout=_ANSWER_SECONDS,
            socket_connect_timeout=_ANSWER_SECONDS,
            **_OURS,
        )
        if any(pool.connection_kwargs[name] is not value for name, value in _OURS.items()):
            raise TypeError("what is ours to set is among the options")
        if "path" in pool.connection_kwargs:  # any bytes, which the client takes for UTF-8
            path = os.fsdecode(unquote_to_bytes(urlsplit(url).path))
            pool.connection_kwargs["path"] = path
        pool.connection_class(**pool.connection_kwargs)  # checks them, and connects nowhere yet
    except ValueError:
        raise StoreError(
            "the store's URL must look like redis://host:6379/0, rediss://host:6379/0 or "
            "unix:///path/to/socket"
        ) from None
    except (TypeError, AttributeError, RedisError):
        raise StoreError(
            "an option of the store's URL, behind its '?', is unknown or has a value that cannot "
            "be used"
        ) from None
    return pool


class RecordDamaged(StoreUnavailable):
    """The store answers, and one record of it is not what it should be."""


class Connection:
    """Runs commands and scripts; raises StoreUnavailable when that cannot be done.

    A write whose answer is lost is sent again, so every script knows a repeat of itself.
    """

    def __init__(self, url: str) -> None:
        """Raises StoreError for a URL that cannot be used."""
        pool = _pool(url)
        self._client = redis.Redis.from_pool(pool)
        self._database = pool.connection_kwargs.get("db") or 0
        self._scripts = {
            name: self._client.register_script(source) for name, source in sources().items()
        }

    async def reach(self, patience: float) -> None:
        """Wait up to `patience` seconds for the server to answer."""
        await self._attempt(self._client.ping, stop_after_delay(patience))

    async def run(self, script: str, keys: list[str], args: list[str]) -> Any:
        """Run a script of `tenants.scripts`, called by its name."""
        return await self.call(lambda _: self._scripts[script](keys=keys, args=args))

    async def call(self, operation: Callable[[Any], Awaitable[T]]) -> T:
        """Run `operation` on the client, again if the connection broke meanwhile."""
        return await self._attempt(lambda: operation(self._client), _PERSISTENCE)

    def channel(self, name: str) -> str:
        """A channel of this database; messages themselves are heard in all of a server's."""
        return f"{name}@{self._database}" if self._database else name

    async def listen(
        self,
        channels: Mapping[str, Callable[[str], None]],
        on_listening: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """Hand every message of each channel to its function, for ever; reconnects by itself.

        Whenever messages are heard again from now on, `on_listening` is called first, once for
        each channel: others may have been missed before.
        """

        async def until_broken() -> None:
            async with self._client.pubsub() as subscription:
                await subscription.subscribe(*channels)
                await _hand_on(subscription, channels, on_listening)

        again = retry_if_exception_type((RedisError, StoreUnavailable))
        await AsyncRetrying(wait=_PAUSE, retry=again)(until_broken)

    async def close(self) -> None:
        await self._client.aclose()

    async def _attempt(self, operation: Callable[[], Awaitable[T]], stop: stop_base) -> T:
        retrying = AsyncRetrying(
            stop=stop, wait=_PAUSE, retry=retry_if_exception(_passing), reraise=True
        )

        async def once() -> T:
            return await operation()

        try:
            return await retrying(once)
        except RedisError as error:
            kind = RecordDamaged if "WRONGTYPE" in str(error) else StoreUnavailable
            raise kind(f"the store does not answer as it should: {error}") from error


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks that use a connection, and wait for their ends.

    One may be swallowed while redis-py connects and subscribes, so it is repeated.
    """
    pending: set[asyncio.Task[Any]] = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_SECONDS)


async def _hand_on(
    subscription: Any,
    channels: Mapping[str, Callable[[str], None]],
    on_listening: Callable[[], Awaitable[None]],
) -> None:
    """Returns never; raises RedisError when the connection breaks or falls silent."""
    asked = False
    while True:
        message = await subscription.get_message(timeout=_SILENCE_SECONDS)
        if message is None:
            if asked:
                raise RedisConnectionError("the subscription does not answer")
            await subscription.ping()
        elif message["type"] == "message":
            channels[message["channel"]](message["data"])
        elif message["type"] == "subscribe":
            await on_listening()
        asked = message is None


def _passing(error: BaseException) -> bool:
    """Whether the error may be gone at once: a connection that broke, a server that starts."""
    refused = isinstance(error, AuthenticationError | AuthorizationError)
    return isinstance(error, RedisConnectionError | RedisTimeoutError) and not refused
