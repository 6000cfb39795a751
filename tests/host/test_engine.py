"""The host on a real thread and a real event loop, over the simulated executor."""

import asyncio
import logging
import threading
import time
import weakref

import numpy as np
import pytest

from engine.core.commands import Cancel, FlowNode
from engine.core.config import KernelConfig
from engine.core.plan import Sampling
from engine.host.engine import Engine, GenerationRequest, HostConfig
from engine.host.worker import EngineState
from engine.sim.executor import SimExecutor, counting_tokens
from engine.sim.profile import A10G_LLAMA2_7B
from telemetry.clock import SystemClock
from telemetry.events import (
    CancelApplied,
    Cause,
    SequenceArrived,
    SequenceEnded,
    StepCommitted,
)
from telemetry.lineage import Lineage, Scope

KERNEL = KernelConfig(
    num_blocks=256, max_running=8, max_step_tokens=128, max_context=512, vocab_size=1000
)


def simulated(advance=lambda _duration: None) -> SimExecutor:
    return SimExecutor(A10G_LLAMA2_7B, counting_tokens(1000), advance)


def slowly(seconds: float):
    return lambda: simulated(lambda _duration: time.sleep(seconds))


def build(factory=simulated, **host) -> tuple[Engine, list]:
    events: list = []
    engine = Engine(
        "sim",
        KERNEL,
        factory,
        SystemClock(),
        host=HostConfig(**host),
        on_events=events.extend,
    )
    return engine, events


def request(tenant="a", prompt=10, output=5, n=1, task="t", **fields) -> GenerationRequest:
    return GenerationRequest(
        lineage=Lineage(tenant, task, "run", "attempt", "request"),
        flow=(FlowNode(tenant),),
        prompt=np.full(prompt, 7, np.int32),
        n=n,
        max_tokens=output,
        sampling=Sampling(temperature=0.0),
        **fields,
    )


async def read(generation) -> tuple[dict[int, list[int]], dict[int, Cause]]:
    tokens: dict[int, list[int]] = {number: [] for number in generation.sequences}
    causes: dict[int, Cause] = {}
    while outputs := await generation.next():
        for output in outputs:
            tokens[output.sequence].extend(output.tokens)
            if output.finished is not None:
                causes[output.sequence] = output.finished.cause
    return tokens, causes


def run(scenario) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(bounded())


def test_choices_arrive_each_under_its_own_number():
    async def scenario():
        engine, _ = build()
        engine.start()
        await engine.ready()
        generation = engine.generate(request(n=3, output=6))
        tokens, causes = await read(generation)
        assert [len(tokens[n]) for n in generation.sequences] == [6, 6, 6]
        assert set(causes.values()) == {Cause.LENGTH}
        assert await generation.next() == ()
        await engine.stop(1)
        assert engine.status().state is EngineState.STOPPED
        assert not engine._worker._thread.is_alive()

    run(scenario())


def test_a_hang_up_stops_the_work_and_frees_the_blocks():
    async def scenario():
        engine, events = build(slowly(0.005))
        engine.start()
        generation = engine.generate(request(output=400))
        await generation.next()
        generation.cancel(Cause.DISCONNECTED)
        generation.cancel(Cause.DISCONNECTED)
        _, causes = await read(generation)
        assert list(causes.values()) == [Cause.DISCONNECTED]
        await engine.stop(1)
        load = engine.status().load
        assert (load.running, load.free_blocks + load.cached_blocks) == (0, 256)
        assert len([e for e in events if isinstance(e, SequenceEnded)]) == 1

    run(scenario())


def test_a_reader_that_stops_reading_is_cut_off_and_delays_nobody():
    """Case 33."""

    async def scenario():
        engine, _ = build(slowly(0.002), max_buffered_tokens=50)
        engine.start()
        lazy = engine.generate(request(output=400))
        eager = engine.generate(request(output=400))
        _, causes = await read(eager)
        assert list(causes.values()) == [Cause.LENGTH]
        tokens, causes = await read(lazy)
        assert list(causes.values()) == [Cause.SLOW_READER]
        assert 50 < sum(len(t) for t in tokens.values()) < 400
        await engine.stop(1)

    run(scenario())


def test_a_cancelled_task_ends_its_requests_and_no_other():
    async def scenario():
        engine, events = build(slowly(0.002))
        engine.start()
        doomed, spared = (
            engine.generate(request(output=60, task=t)) for t in ("task_1", "task_10")
        )
        await doomed.next()
        engine.post(Cancel(Scope("a", "task_1")))
        assert set((await read(doomed))[1].values()) == {Cause.CANCELLED}
        assert set((await read(spared))[1].values()) == {Cause.LENGTH}
        await engine.stop(1)
        (applied,) = [e for e in events if isinstance(e, CancelApplied)]
        assert applied.decode == 1

    run(scenario())


def test_a_stop_string_keeps_what_was_asked_for():
    async def scenario():
        engine, _ = build(slowly(0.002))
        engine.start()
        generation = engine.generate(request(output=300))
        (number,) = generation.sequences
        await generation.next()
        generation.finish(number, 1)
        ended = []
        while outputs := await generation.next():
            ended += [o.finished for o in outputs if o.finished]
        assert (ended[0].cause, ended[0].output_tokens) == (Cause.STOP_STRING, 1)
        await engine.stop(1)

    run(scenario())


def test_a_deadline_that_passes_in_the_queue_is_told_at_once():
    async def scenario():
        engine, _ = build(slowly(0.005))  # several steps within what one is thought to take
        engine.start()
        busy = [engine.generate(request(output=300)) for _ in range(8)]
        for generation in busy:
            await generation.next()
        now = time.monotonic_ns()
        late = engine.generate(request(deadline=now + 300_000_000))
        began = time.monotonic()
        _, causes = await read(late)
        assert list(causes.values()) == [Cause.RELEGATED]  # a little before it passes
        assert 0.15 < time.monotonic() - began < 1.0
        for generation in busy:
            generation.cancel(Cause.CANCELLED)
        await engine.stop(5)

    run(scenario())


def test_draining_lets_running_work_finish_and_ends_the_rest():
    async def scenario():
        engine, _ = build(slowly(0.01))
        engine.start()
        short = engine.generate(request(output=5))
        long = engine.generate(request(output=400))
        await short.next()
        stopping = asyncio.create_task(engine.stop(0.5))
        await asyncio.sleep(0.05)
        refused = engine.generate(request())
        assert list((await read(refused))[1].values()) == [Cause.DRAINING]
        assert list((await read(short))[1].values()) == [Cause.LENGTH]
        assert list((await read(long))[1].values()) == [Cause.SHUTDOWN]
        await stopping
        late = engine.generate(request())
        assert list((await read(late))[1].values()) == [Cause.DRAINING]

    run(scenario())


def test_what_is_asked_while_the_thread_ends_is_answered():
    gate = threading.Event()

    def late() -> SimExecutor:
        gate.wait(20)
        return simulated()

    async def scenario():
        engine, _ = build(late)
        engine.start()
        stopping = asyncio.create_task(engine.stop(0))
        await asyncio.sleep(0.05)
        generation = engine.generate(request())
        gate.set()
        await stopping
        assert list((await read(generation))[1].values()) == [Cause.SHUTDOWN]

    run(scenario())


class Dying(SimExecutor):
    """Fails its `at`th step."""

    def __init__(self, at: int) -> None:
        super().__init__(A10G_LLAMA2_7B, counting_tokens(1000), lambda _d: time.sleep(0.005))
        self._left = at

    def launch(self, plan):
        self._left -= 1
        if self._left == 0:
            raise RuntimeError("device lost")
        return super().launch(plan)


def test_a_lost_executor_fails_what_ran_and_serves_what_waited():
    async def scenario():
        executors = iter([Dying(3), simulated()])
        engine, _ = build(lambda: next(executors))
        engine.start()
        running = [engine.generate(request(output=50)) for _ in range(8)]
        waiting = engine.generate(request(output=50))
        for generation in running:
            assert set((await read(generation))[1].values()) == {Cause.ENGINE_FAILED}
        assert set((await read(waiting))[1].values()) == {Cause.LENGTH}
        assert engine.status().restarts == 1
        assert engine.status().state is EngineState.READY
        await engine.stop(1)

    run(scenario())


def test_a_lost_executor_is_gone_before_the_next_one_is_built(caplog):
    """On a card both would not fit."""
    built, there = [], []

    def factory():
        there.append([reference() is not None for reference in built])
        made = Dying(3) if not built else simulated()
        built.append(weakref.ref(made))
        return made

    async def scenario():
        engine, _ = build(factory)
        engine.start()
        generation = engine.generate(request(output=50))
        assert set((await read(generation))[1].values()) == {Cause.ENGINE_FAILED}
        await engine.ready()
        await engine.stop(1)

    with caplog.at_level(logging.CRITICAL, "watermaster.engine"):  # a kept record keeps its frames
        run(scenario())
    assert there == [[], [False]]


def test_restarts_are_bounded_then_the_engine_is_beyond_recovery():
    async def scenario():
        engine, _ = build(lambda: Dying(2), max_restarts=2)
        engine.start()
        for _ in range(3):
            generation = engine.generate(request(output=50))
            assert set((await read(generation))[1].values()) == {Cause.ENGINE_FAILED}
        assert "device lost" in await engine.failed()
        after = engine.generate(request())
        assert set((await read(after))[1].values()) == {Cause.ENGINE_FAILED}
        await engine.stop(0)

    run(scenario())


def test_an_executor_that_cannot_be_built_fails_the_start_clearly():
    def broken():
        raise OSError("no such weights")

    async def scenario():
        engine, _ = build(broken)
        engine.start()
        with pytest.raises(RuntimeError, match="no such weights"):
            await engine.ready()
        await engine.stop(0)

    run(scenario())


def test_a_hung_step_trips_the_watchdog():
    gate = threading.Event()

    async def scenario():
        engine, _ = build(lambda: simulated(lambda _d: gate.wait(20) and None), step_timeout=0.3)
        engine.start()
        generation = engine.generate(request())
        assert set((await read(generation))[1].values()) == {Cause.ENGINE_FAILED}
        assert "did not finish within 0.3 s" in await engine.failed()
        await engine.stop(0)
        gate.set()

    run(scenario())


class Confused(SimExecutor):
    """Answers its `at`th step with another step's number: the kernel cannot go on from there."""

    def __init__(self, at: int = 1, advance=lambda _d: None) -> None:
        super().__init__(A10G_LLAMA2_7B, counting_tokens(1000), advance)
        self._left = at

    def wait(self, ticket):
        result = super().wait(ticket)
        self._left -= 1
        if self._left:
            return result
        return type(result)(999, result.token_counts, result.tokens, result.duration)


def test_a_fault_in_the_kernel_fails_everything_it_held_and_starts_over():
    async def scenario():
        executors = iter([Confused(), simulated()])
        engine, events = build(lambda: next(executors))
        engine.start()
        lost = [engine.generate(request()) for _ in range(12)]
        for generation in lost:
            assert set((await read(generation))[1].values()) == {Cause.ENGINE_FAILED}
        arrived = [e.sequence for e in events if isinstance(e, SequenceArrived)]
        assert arrived == [e.sequence for e in events if isinstance(e, SequenceEnded)] != []
        assert set((await read(engine.generate(request())))[1].values()) == {Cause.LENGTH}
        await engine.stop(1)

    run(scenario())


def test_what_ends_in_the_same_iteration_as_a_fault_is_told_too():
    stepping, gate = threading.Event(), threading.Event()

    def hold(_duration) -> None:
        stepping.set()
        gate.wait(20)

    async def scenario():
        executors = iter([Confused(2, hold), simulated()])
        engine, _ = build(lambda: next(executors))
        engine.start()
        gone, lost = (engine.generate(request(output=50)) for _ in range(2))
        await asyncio.to_thread(stepping.wait, 20)
        gone.cancel(Cause.DISCONNECTED)  # applied at the start of the step that is confused
        gate.set()
        assert list((await read(gone))[1].values()) == [Cause.DISCONNECTED]
        assert list((await read(lost))[1].values()) == [Cause.ENGINE_FAILED]
        await engine.stop(1)

    run(scenario())


def test_the_hand_off_is_one_call_a_step():
    async def scenario():
        engine, events = build(slowly(0.002))
        engine.start()
        await engine.ready()
        loop = asyncio.get_running_loop()
        calls = []
        original = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda f, *a: (calls.append(f), original(f, *a))[1]
        generations = [engine.generate(request(output=20)) for _ in range(8)]
        await asyncio.gather(*(read(g) for g in generations))
        loop.call_soon_threadsafe = original
        steps = len([e for e in events if isinstance(e, StepCommitted)])
        deliveries = [f for f in calls if getattr(f, "__name__", "") == "_deliver"]
        assert len(deliveries) <= steps + 1
        await engine.stop(1)

    run(scenario())


def test_usage_is_written_down_before_anybody_is_handed_what_it_counts():
    written = 0

    def book(events: list) -> None:
        nonlocal written
        time.sleep(0.005)  # for the loop to be told too early, were it told too early
        written += sum(sum(e.output_tokens) for e in events if isinstance(e, StepCommitted))

    async def scenario():
        engine = Engine("sim", KERNEL, simulated, SystemClock(), book=book)
        engine.start()
        generation = engine.generate(request(output=20))
        received = 0
        while outputs := await generation.next():
            received += sum(len(output.tokens) for output in outputs)
            assert received <= written
        assert received == written == 20
        await engine.stop(1)

    run(scenario())
