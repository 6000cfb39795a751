"""The real edge on a real socket, with the store and the engine host; the model is simulated."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeVar

import httpx
import uvicorn
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from engine.core.commands import Submit
from engine.core.config import KernelConfig
from engine.core.journal_records import Given, read_record
from engine.core.plan import Join
from engine.host.engine import Engine, HostConfig
from engine.host.worker import AnyExecutor
from engine.runtime.text.codec import TextCodec
from engine.sim.executor import SimExecutor
from engine.sim.profile import StepShape
from gateway.app import build_app
from gateway.event_pump import EventPump
from gateway.history import History
from gateway.http_protocol import ConnectionLimits, bounded
from gateway.state import EdgeLimits, Gateway, ServedModel
from gateway.store_access import StoreAccess, connected
from policies.admission import AdmissionConfig
from policies.config import PolicyConfig
from policies.fairness.config import FairnessConfig
from policies.promises import PromiseConfig
from telemetry.clock import SystemClock
from telemetry.event_log import EventLog
from telemetry.events import Event, SequenceEnded
from telemetry.metrics import MetricsFold
from telemetry.tracing import Tracing
from tenants.departed import Departed
from tenants.embedded import EmbeddedValkey
from tenants.ledger.ledger import Ledger, LedgerConfig
from tenants.ledger.usage_store import UsageStore
from tenants.model import READ, Tenant
from tenants.prices import FREE, Price
from tenants.replica import lonely
from tenants.store import Store

T = TypeVar("T")

MODEL = "sim"
SMALL = "sim-small"
CONTEXT = 2048
# What the edge does is tested with an engine that serves in turn, judges no deadline beforehand and
# holds no places: otherwise whether a request waits, runs or is refused would depend on how quick
# the machine is.
PLAIN = PolicyConfig(
    fairness=FairnessConfig(name="vtc"),
    admission=AdmissionConfig(
        mode="accept",
        urgent_steps=0.0,
        drop_hopeless=False,
        promises=PromiseConfig(longest=0.0),
    ),
)
HELLO = [{"role": "user", "content": "hi"}]


def eventually(check: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until `check` holds."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"did not come true within {seconds} s"
        time.sleep(0.005)


def read(connection: socket.socket) -> tuple[bytes, bytes]:
    """One answer with a content-length: its head and its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, body = data.split(b"\r\n\r\n", 1)
    (length,) = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    while len(body) < int(length.split(b":")[1]):
        body += connection.recv(65536)
    return head, body


def read_all(connection: socket.socket) -> bytes:
    """The rest of a chunked answer."""
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        piece = connection.recv(65536)
        assert piece, "cut off"
        data += piece
    return data


@contextmanager
def live_server(codec: TextCodec, folder: Path, **options: Any) -> Iterator["LiveServer"]:
    """One with a store of its own in `folder`; `options` are those of `LiveServer`."""
    valkey = EmbeddedValkey(folder)
    try:
        with LiveServer(valkey.start(), codec, **options) as server:
            yield server
    finally:
        valkey.stop()


@dataclass
class Model:
    """What the simulated model says, and how fast. Choice i draws with seed + i.

    A sequence with seed s speaks `scripts[s % len(scripts)]`, then a stop token if it has one; with
    `endless` it starts over instead.
    """

    scripts: list[list[int]]
    endless: bool = False
    step_seconds: float = 0.0
    steps: int = 0  # begun
    fault: Exception | None = None  # raised by the next step
    running: threading.Event = field(default_factory=threading.Event)
    stuck: bool = False  # a step is held

    def draw(self, join: Join, index: int) -> int:
        script = self.scripts[join.sampling.seed % len(self.scripts)]
        stops = join.sampling.stop_token_ids
        if index >= len(script) and not self.endless and stops:
            return stops[0]
        return script[index % len(script)]

    def duration(self, _: StepShape) -> int:
        return round(self.step_seconds * 1e9)

    def advance(self, _: int) -> None:
        self.steps += 1
        while not self.running.is_set():
            self.stuck = True
            self.running.wait()
        time.sleep(self.step_seconds)
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault

    @contextmanager
    def held(self) -> Iterator[None]:
        """No step ends meanwhile."""
        self.running.clear()
        try:
            yield
        finally:
            self.stuck = False
            self.running.set()


class LiveServer:
    """Runs in a thread with an event loop of its own, as a context manager.

    With `fallback` it serves a second model.

    A replica shares the store and the keys of the server it is a replica of.
    """

    def __init__(
        self,
        store_url: str,
        codec: TextCodec,
        *,
        limits: EdgeLimits | None = None,
        host: HostConfig | None = None,
        fallback: bool = False,
        policy: PolicyConfig = PLAIN,
        price: Price = FREE,
        replica_of: "LiveServer | None" = None,
    ) -> None:
        self.codec = codec
        self.keys: dict[str, str] = {} if replica_of is None else replica_of.keys
        self._fill_store = replica_of is None
        self.model = Model(scripts=[])
        self.model.running.set()
        self.small = Model(scripts=[])  # the fallback's
        self.small.running.set()
        self.events = EventLog(100_000)
        self._with_fallback = fallback
        self._policy = policy
        self._price = price
        self.gateway: Gateway
        self.engine: Engine
        self.store_url = store_url
        self._limits = limits or EdgeLimits()
        self._host = host or HostConfig()
        self._socket = socket.create_server(("127.0.0.1", 0))
        # Small, so that a reader who stops is felt soon; connections inherit it.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        # asyncio does it only for sockets that say they are TCP's; bodies would be late.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = self._socket.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(30)
        return self

    def __exit__(self, *_: object) -> None:
        self.model.running.set()
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    def say(self, *texts: str, endless: bool = False, step_seconds: float = 0.0) -> None:
        """What the model answers from now on."""
        self.model.scripts = [self.codec.encode(text, add_special=False) for text in texts]
        self.model.endless = endless
        self.model.step_seconds = step_seconds

    def client(self, key: str = "gold", **headers: str) -> httpx.Client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        bearer = {"authorization": f"Bearer {self.keys[key]}"}
        return httpx.Client(base_url=self.url, headers={**bearer, **named}, timeout=20)

    def connect(self, content: bytes = b"", key: str = "gold", **headers: str) -> socket.socket:
        """A connection of its own on which a chat request was sent; nothing is read yet."""
        connection = socket.create_connection(self.address, timeout=20)
        self.send(connection, content, key, **headers)
        return connection

    def send(
        self, connection: socket.socket, content: bytes, key: str = "gold", **headers: str
    ) -> None:
        """Write a chat request; a `content_length` of its own replaces the true one."""
        lines = [
            "POST /v1/chat/completions HTTP/1.1",
            "host: x",
            f"authorization: Bearer {self.keys[key]}",
            *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        ]
        if "content_length" not in headers:
            lines.append(f"content-length: {len(content)}")
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)

    @contextmanager
    def occupied(self, count: int = 8, key: str = "bronze", **more: object) -> Iterator[None]:
        """`count` streams of `key` that do not end by themselves; 8 of them fill the batch."""
        body = {"model": MODEL, "messages": HELLO, "stream": True, "ignore_eos": True, **more}
        # who has just been answered may still hold a place
        eventually(lambda: self.gateway.slots.held == self._queued())
        before = self.gateway.slots.held
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(self.connect(json.dumps(body).encode(), key))
            eventually(lambda: self.gateway.slots.held == before + count)
            eventually(lambda: self._queued() == before + count)
            yield

    def _queued(self) -> int:
        load = self.engine.status().load
        return load.running + load.waiting

    def on_loop(self, action: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """Run `action` on the server's own store."""
        store = self.gateway.access.store
        return asyncio.run_coroutine_threadsafe(action(store), self._loop).result(20)

    def change(self, **gateway: object) -> None:
        for name, value in gateway.items():
            setattr(self.gateway, name, value)

    def add(self, tenant: Tenant) -> None:
        """One more tenant, with a key."""

        async def create() -> str:
            store = await Store.connect(self.store_url)
            await store.create_tenant(tenant)
            key = await store.create_key(tenant.id)
            await store.close()
            return key.raw

        self.keys[tenant.id] = asyncio.run(create())

    def tighten(self, **limits: object) -> None:
        self.gateway.limits = replace(self._limits, **limits)

    def flush(self) -> None:
        """Let the event log catch up."""
        httpx.get(f"{self.url}/metrics").raise_for_status()

    def logged(self, kind: type[Event], request: str) -> list[Event]:
        """Events of `kind` of the sequences of one request."""
        return [
            event
            for event in self.events.snapshot()
            if isinstance(event, kind) and event.lineage.request == request
        ]

    def ends(self, request: str, count: int = 1) -> list[SequenceEnded]:
        """The ends of a request's sequences, once there are `count`."""
        eventually(lambda: len(self.logged(SequenceEnded, request)) >= count)
        return self.logged(SequenceEnded, request)

    def submitted(self, request: str) -> Submit:
        """What the kernel was asked for a request; needs a command log."""
        assert self._host.command_log is not None
        path = self._host.command_log.path

        def find() -> Submit | None:
            lines = [line for line in path.read_bytes().splitlines(True) if line.endswith(b"\n")]
            for number, line in enumerate(lines[1:], 2):
                if request.encode() in line:
                    record = read_record(line, number)
                    if isinstance(record, Given) and isinstance(record.command, Submit):
                        return record.command
            return None

        eventually(find)
        submit = find()
        assert submit is not None
        return submit

    def assert_idle(self) -> None:
        """Nothing runs, every block is back, every slot at the edge is free."""

        def idle() -> bool:
            load, config = self.engine.status().load, self.engine.status().config
            blocks = load.free_blocks + load.cached_blocks
            return (load.running, load.waiting, blocks) == (0, 0, config.num_blocks)

        eventually(lambda: self.gateway.slots.held == 0)
        eventually(idle)

    def executor(self, kernel: KernelConfig, model: Model) -> AnyExecutor:
        """What computes; built on the engine thread."""
        return SimExecutor(model, model.draw, model.advance, block_size=kernel.block_size)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        clock = SystemClock()
        with TemporaryDirectory() as folder:
            async with connected(self.store_url, clock, Departed(lonely()), 45.0) as access:
                store = UsageStore(access.store.connection, retention_days=90)
                self.ledger = Ledger(LedgerConfig(Path(folder)), store, clock)
                await self._main_with(access, clock)

    async def _main_with(self, access: StoreAccess, clock: SystemClock) -> None:
        if self._fill_store:
            await self._fill(access.store)
        metrics = MetricsFold(MODEL)
        self.spans = InMemorySpanExporter()
        self.tracing = Tracing(clock, self.spans)
        pump = EventPump((self.events.extend, metrics.apply_all, self.tracing.apply_all))

        def render() -> bytes:
            pump.flush()
            return metrics.render()

        served = self._serve(MODEL, self.model, pump, self.events)
        self.engine = served.engine
        models = {MODEL: served}
        if self._with_fallback:
            log = EventLog(100_000)
            reads = EventPump((log.extend, self.tracing.apply_all))
            small = self._serve(SMALL, self.small, reads, log)
            models = {MODEL: replace(served, fallback=small), SMALL: small}
        self.gateway = Gateway(
            models,
            access,
            self.ledger,
            clock,
            render,
            self.tracing,
            self._limits,
        )
        config = uvicorn.Config(
            build_app(self.gateway),
            http=bounded(ConnectionLimits(200, 65536, 10.0, 45.0)),
            lifespan="off",
            log_config=None,
            timeout_keep_alive=30,
        )
        self._server = uvicorn.Server(config)
        for model in models.values():
            model.engine.start()
            await model.engine.ready()
        serving = asyncio.create_task(self._server.serve([self._socket]))
        async with self.ledger.running():
            self._started.set_result(None)
            await serving
            for model in models.values():
                await model.engine.stop(0)
        self.gateway.close()
        self.tracing.close()
        self._socket.close()

    def _serve(self, name: str, model: Model, pump: EventPump, log: EventLog) -> ServedModel:
        engine = self._engine(name, model, pump)
        history = History(log, pump.flush)
        return ServedModel(name, engine, self.codec, history, CONTEXT, 1_700_000_000, self._price)

    def _engine(self, name: str, model: Model, pump: EventPump) -> Engine:
        kernel = KernelConfig(
            policy=self._policy,
            num_blocks=1024,
            max_running=8,
            max_context=CONTEXT,
            vocab_size=self.codec.vocab_size,
        )

        return Engine(
            name,
            kernel,
            lambda: self.executor(kernel, model),
            SystemClock(),
            host=self._host,
            salt=(name,),
            on_events=pump.post,
            book=self.ledger.journal(name, self._price).book,
        )

    async def _fill(self, store: Store) -> None:
        for tenant in (
            Tenant("gold", weight=3.0),
            Tenant("bronze"),
            Tenant("small", queue_requests=1, default_max_tokens=5, max_max_tokens=7),
            Tenant("hasty", default_timeout_ms=200, max_timeout_ms=400),
            Tenant("routed", admission="feasible", on_infeasible="route"),
            Tenant("strict", admission="feasible"),
            Tenant("choosy", admission="goodput", on_infeasible="degrade", tpot_target_ms=50),
        ):
            await store.create_tenant(tenant)
            self.keys[tenant.id] = (await store.create_key(tenant.id)).raw
        self.keys["preferred"] = (await store.create_key("routed", models=[MODEL])).raw
        self.keys["elsewhere"] = (await store.create_key("gold", models=["other"])).raw
        self.keys["reader"] = (await store.create_key("gold", scopes=[READ])).raw
        self.keys["admin"] = await store.admin_key.issue()
        revoked = await store.create_key("gold")
        await store.revoke_key(revoked.key.public_id)
        self.keys["revoked"] = revoked.raw
        self.keys["unknown"] = f"{self.keys['gold'].rsplit('-', 1)[0]}-{'0' * 43}"
