"""The composition root: builds everything a running server consists of, and takes it down again.

Start: store, model files, engine, application; `/ready` answers once the engine is warm.
Stop, on SIGTERM or Ctrl-C: new work is refused, running work may finish within the grace period,
what is left ends with an error of its own, then everything closes in reverse order.
"""

import asyncio
import logging
import resource
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
import uvloop

from engine.host.engine import Engine, HostConfig
from engine.runtime.text.codec import TextCodec
from gateway import logs
from gateway.app import build_app
from gateway.config import ServerSettings, Settings, StoreSettings
from gateway.config_docs import hide_password
from gateway.http_protocol import ConnectionLimits, bounded
from gateway.model_source import ModelSource, executor_factory, find_model, kernel_config
from gateway.observers import Observers
from gateway.state import EdgeLimits, Gateway, ServedModel
from telemetry.clock import Clock, SystemClock
from tenants.auth import Authenticator
from tenants.embedded import EmbeddedStoreError, EmbeddedValkey
from tenants.store import Store, StoreUnavailable

CLOSING_SECONDS = 5  # for answers in flight to leave after the engine has stopped
KEEP_ALIVE = 30  # seconds an idle connection is kept for its caller's next request
STORE_CHECK_SECONDS = 2.0  # known keys go on working meanwhile
SPARE_FILES = 256  # descriptors beside those of connections

logger = logging.getLogger("watermaster")


class HttpServer(uvicorn.Server):
    """uvicorn, told when to exit by our drain instead of by its own signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(settings: Settings, listener: socket.socket) -> int:
    """Serve until a signal; returns the process's exit code: 0 after a drain, 1 for a failure.

    Raises what `watermaster serve` explains: ModelStoreError, UnsupportedModelError, WeightsError,
    CodecError, ModelSourceError, EmbeddedStoreError, StoreError.
    """
    logs.set_up(settings.log.level, settings.log.format)
    _raise_file_limit(settings.server.max_connections)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(settings, listener))


async def _run(settings: Settings, listener: socket.socket) -> int:
    signals = _Signals()
    async with _open_store(settings.store) as store:
        source = await asyncio.to_thread(find_model, settings.model)
        codec = await asyncio.to_thread(TextCodec.load, source.path)
        clock = SystemClock()
        observers = Observers(settings, clock)
        engine = _build_engine(settings, source, clock, observers)
        gateway = Gateway(
            models={engine.name: _served(engine, codec)},
            authenticator=Authenticator(store, clock),
            clock=clock,
            metrics=observers.metrics,
            tracing=observers.tracing,
            limits=_edge_limits(settings.server),
        )
        http = _http_server(settings.server, gateway)
        serving = asyncio.create_task(http.serve([listener]))
        logger.info("loading %s as %s on %s", source.path, source.dtype, source.device)
        engine.start()
        try:
            code = await _until_over(engine, signals, lambda: _announce(settings, engine, listener))
            gateway.draining = True
            await _drain(engine, signals, settings.server.drain_grace)
        finally:
            http.should_exit = True
            await serving
            gateway.close()
            observers.pump.flush()
            await asyncio.to_thread(observers.tracing.close)
    logger.info("stopped")
    return code


async def _until_over(engine: Engine, signals: "_Signals", announce: Callable[[], None]) -> int:
    """Wait for a signal (returns 0) or for the engine to fail for good (returns 1)."""
    failed = asyncio.create_task(engine.failed())
    signalled = asyncio.create_task(signals.first.wait())
    ready = asyncio.create_task(engine.ready())
    try:
        await asyncio.wait({failed, signalled, ready}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and ready.exception() is None:
            announce()
            await asyncio.wait({failed, signalled}, return_when=asyncio.FIRST_COMPLETED)
        if signals.first.is_set():
            return 0
        logger.error("the engine is beyond recovery, so the server ends: %s", await failed)
        return 1
    finally:
        for task in (failed, signalled, ready):
            task.cancel()


async def _drain(engine: Engine, signals: "_Signals", grace: float) -> None:
    """Stop the engine; a second signal cuts the grace period short."""
    logger.info("draining: no new work, and running work ends within %g s", grace)
    stopping = asyncio.create_task(engine.stop(grace))
    cut = asyncio.create_task(signals.second.wait())
    await asyncio.wait({stopping, cut}, return_when=asyncio.FIRST_COMPLETED)
    cut.cancel()
    if stopping.done():
        stopping.result()
        return
    logger.warning("told to stop again: ending what still runs")
    stopping.cancel()
    await engine.stop(0)


class _Signals:
    """SIGTERM and SIGINT as events: the first, the second; a third does what it does by default."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._arrived)

    def _arrived(self) -> None:
        if not self.first.is_set():
            self.first.set()
            return
        self.second.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)


@asynccontextmanager
async def _open_store(settings: StoreSettings) -> AsyncIterator[Store]:
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


def _build_engine(
    settings: Settings, source: ModelSource, clock: Clock, observers: Observers
) -> Engine:
    kernel = kernel_config(source, settings.kernel)
    return Engine(
        settings.model.id,
        kernel,
        executor_factory(source, kernel, settings.model.threads),
        clock,
        host=HostConfig(
            max_restarts=settings.engine.max_restarts,
            step_timeout=settings.engine.step_timeout,
            share_prefixes=settings.engine.share_prefixes,
        ),
        salt=(source.revision,),
        on_events=observers.pump.post,
    )


def _served(engine: Engine, codec: TextCodec) -> ServedModel:
    return ServedModel(
        id=engine.name,
        engine=engine,
        codec=codec,
        context=engine.status().config.max_context,
        created=int(time.time()),
    )


def _edge_limits(settings: ServerSettings) -> EdgeLimits:
    return EdgeLimits(
        max_body_bytes=settings.max_body_bytes,
        body_timeout=settings.read_timeout,
        max_requests=settings.max_requests,
        max_tenant_requests=settings.max_tenant_requests,
        keepalive=settings.stream_keepalive,
        write_timeout=settings.write_timeout,
        workers=settings.workers,
    )


def _http_server(settings: ServerSettings, gateway: Gateway) -> HttpServer:
    limits = ConnectionLimits(
        settings.max_connections, settings.max_header_bytes, settings.read_timeout
    )
    config = uvicorn.Config(
        build_app(gateway),
        http=bounded(limits),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    return HttpServer(config)


def _announce(settings: Settings, engine: Engine, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    kernel = engine.status().config
    logger.info(
        "ready on http://%s:%d",
        f"[{host}]" if ":" in host else host,
        port,
        extra={
            "model": engine.name,
            "kv_tokens": kernel.num_blocks * kernel.block_size,
            "context": kernel.max_context,
            "store": hide_password(settings.store.url) or str(settings.store.data_dir),
        },
    )


def _raise_file_limit(connections: int) -> None:
    """Each connection is a file; the usual soft limit of 1024 is below what we promise."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    if reachable < wanted:
        logger.warning(
            "this system allows %d open files, too few for server.max_connections = %d",
            reachable,
            connections,
        )
