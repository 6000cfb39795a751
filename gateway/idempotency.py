"""A call under an idempotency key is computed once, however often it is sent.

Sent again while it runs here, it is joined: every caller reads the same answer, and the work goes
on until the last of them hangs up. Sent later, it is answered with what was kept, by every replica
that shares the store. What failed is not kept, so that it may be tried again. With the store away a
key holds on its own replica alone.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import orjson

from gateway.errors import ApiError, Reason, Row
from gateway.generate import find_model
from gateway.kept_answers import Kept, KeptAnswers, UnreadableError
from gateway.pressure import PressureDesk
from gateway.recording import Reader, Recording, Room
from gateway.state import ServedModel
from gateway.wire import json_object
from telemetry.clock import Clock
from telemetry.units import MILLISECOND
from tenants.calls import LEASE_MS, CallName, Calls, CallState, Found
from tenants.choices import AUTO
from tenants.connection import StoreUnavailable
from tenants.model import Principal

UNREADABLE = (
    "The call was answered or still runs, in a form that this server cannot read, so it was not "
    "computed again; ask the server that has it, which may be a newer one, or use a new key."
)
LEAST_WAIT_MS = 100  # for a call that takes longer than was thought

logger = logging.getLogger("watermaster")

T = TypeVar("T")

# Computes an answer; returns what a stream failed of in-band. Raises ApiError.
Run = Callable[[Recording], Awaitable[Row | None]]


@dataclass(frozen=True, slots=True)
class Payload:
    """`print` tells it from others; `model` is what it asks, where that is known."""

    print: str
    model: ServedModel | None


def read_payload(
    path: str, body: bytes, principal: Principal, models: Mapping[str, ServedModel]
) -> Payload:
    """What is asked, whatever the order of its members. Takes time by the size of the body.

    What `auto` means to a key that may not use the preferred model is another thing to ask.
    Raises ApiError, also for a model that is not the caller's: the answer may be another key's.
    """
    payload = json_object(body)
    named = payload.get("model")
    model = find_model(named, principal, models) if isinstance(named, str) else None
    asked: list[object] = [path, payload]
    if model is not None and named == AUTO and model is not next(iter(models.values())):
        asked.append(model.id)
    try:
        whole = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # it writes no such depth as it reads
        raise ApiError(
            Reason.INVALID_JSON, "The body is nested too deeply for an idempotency key."
        ) from None
    return Payload(hashlib.sha256(whole).hexdigest(), model)


@dataclass(frozen=True, slots=True)
class _Running:
    print: str
    recording: Recording
    begun: int  # monotonic ns


class Idempotency:
    """The calls of one replica that have a key. Used from one event loop.

    `place`: of the replica. What its dead predecessors there had begun may be begun anew at once.
    """

    def __init__(self, calls: Calls, place: str, clock: Clock, desk: PressureDesk) -> None:
        self._calls = calls
        self._place = place
        self._clock = clock
        self._desk = desk
        self._kept = KeptAnswers(clock)
        self._running: dict[tuple[str, str], _Running] = {}
        self._room = Room()
        self._work: set[asyncio.Task[None]] = set()

    async def read(self, name: CallName, model: ServedModel | None, run: Run) -> Reader:
        """A reader of the answer to a call.

        `run` computes it if nobody does or has. Raises ApiError.
        """
        found = self._running.get((name.tenant, name.key)) or self._of_kept(name)
        if found is None:
            return self._begin(name, model, run)
        if found.print != name.print:
            raise ApiError(Reason.KEY_REUSED, param="idempotency-key")
        if found.recording.dropped:  # a stream too long to be read from its beginning
            raise await self._busy(name, model, (self._clock.now() - found.begun) // MILLISECOND)
        return Reader(found.recording, joins=True)

    def _begin(self, name: CallName, model: ServedModel | None, run: Run) -> Reader:
        recording = Recording(self._room, lambda: self._forget(name, recording))
        running = _Running(name.print, recording, self._clock.now())
        self._running[name.tenant, name.key] = running
        reader = Reader(recording)
        work = asyncio.create_task(self._produce(name, model, recording, run))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        return reader

    def _of_kept(self, name: CallName) -> _Running | None:
        found = self._kept.find(name)
        if found is None:
            return None
        known, kept = found
        recording = Recording(self._room)
        _play(recording, kept)
        return _Running(known, recording, 0)

    def _forget(self, name: CallName, recording: Recording) -> None:
        """Nobody joins it any more: the next call is a new one."""
        running = self._running.get((name.tenant, name.key))
        if running is not None and running.recording is recording:
            del self._running[name.tenant, name.key]

    async def _produce(
        self, name: CallName, model: ServedModel | None, recording: Recording, run: Run
    ) -> None:
        """Have the recording written by whoever knows the answer."""
        token = secrets.token_hex(8)
        try:
            found = await self._claim(name, token)
            match found.state:
                case CallState.NEW:
                    await self._compute(name, token, recording, run)
                case CallState.DONE:
                    _play(recording, Kept.of(found.answer))
                case CallState.LOST:
                    _play(recording, Kept(None))
                case CallState.UNREADABLE:
                    raise UnreadableError(f"the record of a call under a key of {name.tenant}")
                case CallState.OTHER:
                    recording.fail(ApiError(Reason.KEY_REUSED, param="idempotency-key"))
                case CallState.RUNNING:
                    recording.fail(await self._busy(name, model, found.running_ms))
        except UnreadableError as error:
            logger.warning("an answer in the store cannot be read: %s", error)
            recording.fail(ApiError(Reason.ANSWER_NOT_KEPT, UNREADABLE))
        except Exception:
            logger.exception("a call under an idempotency key failed")
            recording.fail(ApiError(Reason.INTERNAL))
        finally:
            recording.close()
            self._forget(name, recording)

    async def _busy(self, name: CallName, model: ServedModel | None, running_ms: int) -> ApiError:
        """The refusal to join a call, with the time that such a call may still take."""
        seconds = model and await self._desk.ordinary_seconds(model, name.tenant)
        if not seconds:
            return ApiError(Reason.CALL_RUNNING)
        left = max(LEAST_WAIT_MS, round(seconds * 1000) - running_ms)
        return ApiError(
            Reason.CALL_RUNNING,
            facts={"estimated_remaining_ms": left},
            retry_after=left * MILLISECOND,
        )

    async def _claim(self, name: CallName, token: str) -> Found:
        try:
            return await self._calls.begin(name, self._place, token)
        except StoreUnavailable:
            return Found(CallState.NEW)

    async def _compute(self, name: CallName, token: str, recording: Recording, run: Run) -> None:
        renewing = asyncio.create_task(self._renew(name, token))
        good = False
        try:
            good = await run(recording) is None and recording.ended
        except ApiError as error:
            recording.fail(error)
        finally:
            renewing.cancel()
            if good:
                await self._keep(name, token, recording)
            else:
                self._forget(name, recording)  # first, so that a retry finds nothing of it
                await self._tell(self._calls.drop(name, token))

    async def _keep(self, name: CallName, token: str, recording: Recording) -> None:
        kept = Kept(recording.whole, recording.streams, recording.routed_to)
        self._kept.put(name, kept)
        text = await asyncio.to_thread(kept.text)
        if await self._tell(self._calls.finish(name, token, text)) is False:
            self._kept.drop(name)  # everybody else is told the other run's answer

    async def _renew(self, name: CallName, token: str) -> None:
        while True:
            await asyncio.sleep(LEASE_MS / 3000)
            await self._tell(self._calls.renew(name, token))

    async def _tell(self, saying: Awaitable[T]) -> T | None:
        try:
            return await saying
        except StoreUnavailable as lost:
            logger.warning("a call under an idempotency key is kept here alone: %s", lost)
            return None


def _play(recording: Recording, kept: Kept) -> None:
    if kept.body is None:
        recording.fail(ApiError(Reason.ANSWER_NOT_KEPT))
    else:
        recording.replay(kept.body, kept.routed_to, stream=kept.stream)
