"""The composition root: builds everything a running server consists of, and takes it down again.

Start: store, model files, engine, application; `/ready` answers once the engine is warm.
Stop, on SIGTERM or Ctrl-C: new work is refused, running work may finish within the grace period,
what is left ends with an error of its own, then everything closes in reverse order.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
import uvloop

from engine.host.command_log import CommandLogConfig
from engine.host.engine import Engine, HostConfig
from engine.runtime.text.codec import TextCodec
from gateway import heap, logs
from gateway.app import build_app
from gateway.config import ServerSettings, Settings
from gateway.config_docs import hide_password
from gateway.config_model import ModelSettings
from gateway.file_limit import connections_within
from gateway.http_protocol import ConnectionLimits, bounded
from gateway.lifecycle import Signals, drain, until_over
from gateway.model_source import ModelSource, executor_factory, find_model, kernel_config
from gateway.observers import Observer, Observers
from gateway.state import EdgeLimits, Gateway, ServedModel
from gateway.store_access import StoreAccess, open_store
from telemetry.clock import Clock, SystemClock
from tenants.ledger.journal import Journal
from tenants.ledger.ledger import Ledger, LedgerConfig
from tenants.ledger.usage_store import UsageStore

CLOSING_SECONDS = 5  # for answers in flight to leave after the engine has stopped

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
    connections = connections_within(settings.server.max_connections)
    server = settings.server.model_copy(update={"max_connections": connections})
    settings = settings.model_copy(update={"server": server})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(settings, listener))


async def _run(settings: Settings, listener: socket.socket) -> int:
    signals = Signals()
    clock = SystemClock()
    async with open_store(settings.store, clock) as access:
        observers = Observers(settings.telemetry, clock)
        ledger = _ledger(settings, access, clock)
        models = await _build_models(settings, clock, observers, ledger)
        gateway = Gateway(
            models={model.id: model for model in models},
            access=access,
            ledger=ledger,
            clock=clock,
            metrics=observers.metrics,
            tracing=observers.tracing,
            limits=_edge_limits(settings.server, settings.policy.domain),
        )
        try:
            async with ledger.running():
                code = await _serve(settings, gateway, signals, listener)
        finally:
            observers.flush()
            await asyncio.to_thread(observers.tracing.close)
    logger.info("stopped")
    return code


async def _serve(
    settings: Settings, gateway: Gateway, signals: Signals, listener: socket.socket
) -> int:
    models = list(gateway.models.values())
    engines = [model.engine for model in models]
    http = _http_server(settings.server, gateway)
    serving = asyncio.create_task(http.serve([listener]))
    for engine in engines:
        engine.start()
    try:
        code = await until_over(engines, signals, lambda: _ready(settings, models, listener))
        gateway.draining = True
        await drain(engines, signals, settings.server.drain_grace)
    finally:
        http.should_exit = True
        await serving
        gateway.close()
    return code


def _ledger(settings: Settings, access: StoreAccess, clock: Clock) -> Ledger:
    usage = settings.usage
    config = LedgerConfig(
        folder=settings.store.usage_dir,
        interval=usage.flush_interval,
        most_bytes=usage.journal_bytes,
    )
    store = UsageStore(access.store.connection, usage.retention_days)
    return Ledger(config, store, clock, access.departed)


async def _build_models(
    settings: Settings, clock: Clock, observers: Observers, ledger: Ledger
) -> list[ServedModel]:
    """The preferred model first."""
    first, second = settings.model, settings.model.of_fallback()
    if second is None:
        return [await _build_model(settings, first, clock, observers, ledger)]
    # Both look at the memory that is free now, so each takes half of what it would alone.
    fallback = await _build_model(settings, second, clock, observers, ledger, engines=2)
    preferred = await _build_model(
        settings, first, clock, observers, ledger, fallback=fallback, engines=2
    )
    return [preferred, fallback]


async def _build_model(
    settings: Settings,
    model: ModelSettings,
    clock: Clock,
    observers: Observers,
    ledger: Ledger,
    fallback: ServedModel | None = None,
    engines: int = 1,
) -> ServedModel:
    source = await asyncio.to_thread(find_model, model)
    codec = await asyncio.to_thread(TextCodec.load, source.path)
    formats = f"{source.dtype}, KV as {source.kv_dtype}"
    logger.info("loading %s as %s on %s", source.path, formats, source.device)
    observer, prices = observers.of(model.id), settings.prices
    price = prices.of_model() if model is settings.model else prices.of_fallback()
    journal = ledger.journal(model.id, price)
    engine = _build_engine(settings, model, source, clock, observer, journal, engines)
    return ServedModel(
        id=engine.name,
        engine=engine,
        codec=codec,
        history=observer.history,
        context=engine.status().config.max_context,
        created=int(time.time()),
        price=price,
        fallback=fallback,
    )


def _build_engine(
    settings: Settings,
    model: ModelSettings,
    source: ModelSource,
    clock: Clock,
    observer: Observer,
    journal: Journal,
    engines: int,
) -> Engine:
    policy = settings.policy.to_config(settings.admission)
    kernel = kernel_config(source, settings.kernel, policy, engines)
    return Engine(
        model.id,
        kernel,
        executor_factory(source, kernel, model.threads),
        clock,
        host=HostConfig(
            max_restarts=settings.engine.max_restarts,
            step_timeout=settings.engine.step_timeout,
            share_prefixes=settings.engine.share_prefixes,
            command_log=_command_log(settings, model),
        ),
        salt=(source.revision,),
        on_events=observer.pump.post,
        book=journal.book,
    )


def _command_log(settings: Settings, model: ModelSettings) -> CommandLogConfig | None:
    """The fallback's stands beside the preferred model's; ids of models may be no file names."""
    path = settings.engine.command_log
    if path is None:
        return None
    if model is not settings.model:
        path = path.with_name(f"{path.stem}-fallback{path.suffix}")
    return CommandLogConfig(path, settings.engine.command_log_bytes)


def _edge_limits(settings: ServerSettings, domain: str) -> EdgeLimits:
    return EdgeLimits(
        domain=domain,
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
        settings.max_connections,
        settings.max_header_bytes,
        settings.read_timeout,
        # a stream finds out itself, and says why it ended, once it has something to write again
        settings.write_timeout + settings.stream_keepalive,
    )
    config = uvicorn.Config(
        build_app(gateway),
        http=bounded(limits),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nobody asks where a call came from
        timeout_keep_alive=settings.idle_timeout,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    return HttpServer(config)


def _ready(settings: Settings, models: list[ServedModel], listener: socket.socket) -> None:
    """Everything that lives as long as the process is there now."""
    heap.settle()
    _announce(settings, models, listener)


def _announce(settings: Settings, models: list[ServedModel], listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    kernel = models[0].engine.status().config
    logger.info(
        "ready on http://%s:%d",
        f"[{host}]" if ":" in host else host,
        port,
        extra={
            "model": ",".join(model.id for model in models),
            "kv_tokens": kernel.num_blocks * kernel.block_size,
            "context": kernel.max_context,
            "store": hide_password(settings.store.url) or str(settings.store.data_dir),
        },
    )
