"""A polite client: `AsyncClient`, and `Client` for code that is not asynchronous.

It needs httpx and nothing of the server's. `docs/client.md` shows how it is used.
"""

from gateway.client.asynchronous import Answer, AsyncClient
from gateway.client.blocking import Client
from gateway.client.errors import (
    BrokenStreamError,
    ClientError,
    DeadlineError,
    NoneAcceptedError,
    RefusedError,
    UnreachableError,
)
from gateway.client.race import Won
from gateway.client.retries import GivenUp, RetryPolicy
from gateway.client.scope import Scope, scope

__all__ = [
    "Answer",
    "AsyncClient",
    "BrokenStreamError",
    "Client",
    "ClientError",
    "DeadlineError",
    "GivenUp",
    "NoneAcceptedError",
    "RefusedError",
    "RetryPolicy",
    "Scope",
    "UnreachableError",
    "Won",
    "scope",
]
