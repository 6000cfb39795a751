"""What streaming to many connections costs the engine thread that shares a process with them.

The same decode batch runs twice in each repeat: its tokens read by coroutines that drop them, and
streamed as server-sent events over as many HTTP connections to a client in another process. The
ratio of the two step intervals is what the shared interpreter lock and the shared cores cost.
"""

import asyncio
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
import uvicorn

from engine.core.commands import FlowNode
from engine.core.config import KernelConfig
from engine.core.plan import Sampling
from engine.host.engine import Engine, GenerationRequest
from engine.host.generation import Generation
from engine.runtime.executor import TorchExecutor
from engine.runtime.loader import load_quickest
from loadgen.live import on_passing_thread
from telemetry.clock import SystemClock
from telemetry.events import Event, StepCommitted
from telemetry.lineage import Lineage

Send = Callable[[dict[str, object]], Awaitable[None]]

PROMPT_TOKENS = 64
SSE_START: dict[str, object] = {"type": "http.response.start", "status": 200, "headers": []}


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: milliseconds between steps with the whole batch decoding, and CPU seconds spent."""

    step_ms: float
    loop_cpu: float  # of the event loop's thread
    client_cpu: float  # of the client process, 0 where there is none


class Boundary:
    """An engine with a full decode batch, and the ways its tokens may be read."""

    def __init__(self, model_path: Path, streams: int, tokens: int) -> None:
        self._streams = streams
        self._tokens = tokens
        self._commits: list[StepCommitted] = []
        blocks = streams * (-(-(PROMPT_TOKENS + tokens) // 16) + 1)
        model = on_passing_thread(lambda: load_quickest(model_path, torch.bfloat16))
        kernel = KernelConfig(
            num_blocks=2 * blocks,
            max_running=streams,
            max_step_tokens=max(512, 2 * streams),
            vocab_size=model.config.vocab_size,
        )
        self._engine = Engine(
            "bench",
            kernel,
            lambda: TorchExecutor(model, kernel),
            SystemClock(),
            on_events=self._note,
        )
        self._next = 0

    async def start(self) -> None:
        """Start the engine and serve streams on a free port."""
        self._engine.start()
        await self._engine.ready()
        listener = socket.create_server(("127.0.0.1", 0), backlog=self._streams)
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app, interface="asgi3", log_level="warning", lifespan="off", http="httptools"
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve([listener]))

    async def stop(self) -> None:
        """Stop serving and the engine."""
        self._server.should_exit = True
        await self._serving
        await self._engine.stop(5)

    async def dropped(self) -> Sample:
        """Every stream is read by a coroutine that drops what it gets."""
        self._commits.clear()
        began = time.thread_time()
        await asyncio.gather(*(self._drop(self._generate()) for _ in range(self._streams)))
        return Sample(self._step_ms(), time.thread_time() - began, 0.0)

    async def streamed(self) -> Sample:
        """Every stream goes over an HTTP connection to a client process."""
        self._commits.clear()
        began = time.thread_time()
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "loadgen.boundary_client", str(self._port), str(self._streams)),
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await client.communicate()
        if client.returncode:
            raise RuntimeError("the client of the streams failed")
        return Sample(self._step_ms(), time.thread_time() - began, float(printed))

    def _generate(self) -> Generation:
        self._next += 1
        prompt = np.random.default_rng(self._next).integers(100, 40_000, PROMPT_TOKENS)
        request = GenerationRequest(
            lineage=Lineage("bench", "t", "r", "a", str(self._next)),
            flow=(FlowNode("bench"),),
            prompt=prompt.astype(np.int32),
            n=1,
            max_tokens=self._tokens,
            sampling=Sampling(temperature=0.0),
        )
        return self._engine.generate(request)

    @staticmethod
    async def _drop(generation: Generation) -> None:
        while await generation.next():
            pass

    async def _app(self, _scope: object, _receive: object, send: Send) -> None:
        await send(SSE_START)
        generation = self._generate()
        while outputs := await generation.next():
            body = b"".join(b"data: %d\n\n" % t for output in outputs for t in output.tokens)
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _note(self, events: list[Event]) -> None:
        self._commits.extend(e for e in events if isinstance(e, StepCommitted))

    def _step_ms(self) -> float:
        full = [e.now for e in self._commits if len(e.sequences) == self._streams]
        return median(np.diff(full).tolist()) / 1e6


def measure(
    model_path: Path, streams: int, tokens: int, repeat: int, report: Callable[[str], None]
) -> list[tuple[Sample, Sample]]:
    """(dropped, streamed) pairs, after one pair to warm up."""

    async def run() -> list[tuple[Sample, Sample]]:
        boundary = Boundary(model_path, streams, tokens)
        await boundary.start()
        pairs = []
        for index in range(repeat + 1):
            pairs.append((await boundary.dropped(), await boundary.streamed()))
            report(f"run {index} of {repeat}" + (" (warm-up, not counted)" if not index else ""))
        await boundary.stop()
        return pairs[1:]

    return asyncio.run(run())
