from collections.abc import AsyncIterator, Iterator

import pytest

from tenants.connection import Connection
from tenants.embedded import EmbeddedValkey
from tenants.store import Store


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = EmbeddedValkey(tmp_path_factory.mktemp("valkey"))
    yield server.start()
    server.stop()


@pytest.fixture
async def connection(valkey_url: str) -> AsyncIterator[Connection]:
    """A connection to an empty store."""
    connection = Connection(valkey_url)
    await connection.call(lambda client: client.flushall())
    yield connection
    await connection.close()


@pytest.fixture
async def store(valkey_url: str, connection: Connection) -> AsyncIterator[Store]:
    store = await Store.connect(valkey_url)
    yield store
    await store.close()
