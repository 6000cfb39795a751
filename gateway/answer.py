"""Writes a generation out as an answer of any shape, in one piece or as a stream."""

import asyncio
from collections import defaultdict
from typing import Any

from opentelemetry.util.types import AttributeValue
from starlette.types import Send

from engine.core.outputs import Output
from engine.host.generation import Generation
from gateway.call import RawHeaders, send_json
from gateway.choices import Choices, Delta
from gateway.errors import ApiError
from gateway.ids import fresh
from gateway.outcomes import from_finished
from gateway.shape import Prepared, Shape
from gateway.sse import EventStream
from telemetry import semconv
from telemetry.events import Cause


class Answer:
    """The answer to one prepared call; `created` is in Unix seconds."""

    def __init__(
        self, shape: Shape[Any], prepared: Prepared, generation: Generation, created: int
    ) -> None:
        self._model = prepared.model
        self._generation = generation
        self._choices = Choices(
            generation,
            generation.sequences,
            prepared.model.codec,
            prepared.request.stop,
            frozenset(prepared.sampling.stop_token_ids),
        )
        self._id = fresh(shape.id_prefix)
        self._writer = shape.writer(prepared, self._id, created)

    async def whole(self, send: Send, headers: RawHeaders) -> None:
        """Answer in one piece, with further `headers`. Raises ApiError when a choice fails."""
        deltas: dict[int, list[Delta]] = defaultdict(list)
        while not self._choices.done:
            for delta in self._choices.absorb(await self._generation.next()):
                deltas[delta.index].append(delta)
            if self._choices.failure:
                raise await self._error()
        choices = [deltas[index] for index in sorted(deltas)]
        await send_json(send, self._writer.whole(choices, self._choices.usage()), headers)

    async def stream(self, events: EventStream, delay: float | None = None) -> ApiError | None:
        """Answer as events; returns the error that ended the stream in-band, if one did.

        The status waits for the first output, for `delay` seconds at most, so that a refusal has a
        real one: raises ApiError when a choice fails before that.
        """
        deltas = self._choices.absorb(await self._first(events, delay))
        if self._choices.failure:
            error = await self._error()
            if not events.opened:
                raise error
            await events.fail(error)
            return error
        await events.open()
        await events.write(self._writer.opening())
        while not (self._choices.done or self._choices.failure):
            await events.write(self._writer.news(deltas))
            deltas = self._choices.absorb(await events.during(self._generation.next))
        if self._choices.failure:
            await events.write(self._writer.news(deltas))
            error = await self._error()
            await events.fail(error)
            return error
        await events.close(self._writer.closing(deltas, self._choices.usage()))
        return None

    async def _first(self, events: EventStream, delay: float | None) -> tuple[Output, ...]:
        """The first output; the status goes ahead of it when it takes longer than `delay`."""
        if delay is None:
            return await self._generation.next()
        try:
            async with asyncio.timeout(delay):
                return await self._generation.next()
        except TimeoutError:
            await events.open()
            return await events.during(self._generation.next)

    def attributes(self) -> dict[str, AttributeValue | None]:
        """What a trace says of the answer."""
        usage = self._choices.usage()
        return {
            semconv.RESPONSE_ID: self._id,
            semconv.RESPONSE_MODEL: self._model.id,
            semconv.RESPONSE_FINISH_REASONS: self._choices.finish_reasons,
            semconv.USAGE_INPUT_TOKENS: usage.prompt,
            semconv.USAGE_OUTPUT_TOKENS: usage.output,
            semconv.USAGE_CACHED_TOKENS: usage.cached,
        }

    async def _error(self) -> ApiError:
        """The first failure; the other choices are ended first, so that usage is complete."""
        failure = self._choices.failure
        assert failure is not None
        self._generation.cancel(Cause.CANCELLED)
        while not self._choices.done:
            self._choices.absorb(await self._generation.next())
        return from_finished(failure, self._writer.usage(self._choices.usage_of_failure()))
