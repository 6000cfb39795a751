"""Which model answers a call: the one asked for, or its fallback when a deadline asks for that."""

from dataclasses import dataclass, replace
from typing import Any

from engine.core.outputs import Finished
from engine.host.engine import Engine, GenerationRequest
from engine.host.generation import Generation
from engine.host.worker import EngineState
from gateway.errors import ApiError, Reason
from gateway.generate import prepare_for
from gateway.hangup import Hangup
from gateway.quota import Ticket
from gateway.shape import Prepared, Shape
from gateway.state import ServedModel
from gateway.workers import Workers
from telemetry.clock import Clock
from telemetry.events import Cause
from tenants.choices import AUTO, OnInfeasible
from tenants.model import Principal


@dataclass(frozen=True, slots=True)
class Placed:
    """A call in the engine that answers it, which is not that of the model `instead_of`."""

    prepared: Prepared
    request: GenerationRequest
    generation: Generation
    instead_of: str | None = None


class Router:
    """Places calls of one shape. `workers` tokenise anew for a fallback."""

    def __init__(self, shape: Shape[Any], workers: Workers, clock: Clock) -> None:
        self._shape = shape
        self._workers = workers
        self._clock = clock

    async def place(
        self,
        prepared: Prepared,
        request: GenerationRequest,
        principal: Principal,
        hangup: Hangup,
        ticket: Ticket,
    ) -> Placed:
        """Ask the engine, and the fallback's if the first cannot, or no longer, meet the deadline.

        Raises ApiError 429 for a limit, 503 while the engine is not ready.
        """
        await _cover(ticket, prepared)
        fallback = _fallback(prepared, request, principal)
        choice = OnInfeasible.ROUTE if fallback else _without_route(prepared, request)
        if choice != request.on_infeasible:
            request = replace(request, on_infeasible=choice)
        first = _ask(prepared, request, hangup, ticket)
        if fallback is None:
            return first
        try:
            with ticket.undecided():
                end = await first.generation.refusal()
                if end is None or not self._may_move(end, request):
                    return first
                return await self._ask_instead(fallback, first, principal, hangup, ticket)
        except BaseException:
            first.generation.cancel(Cause.DISCONNECTED)  # nothing goes on computing for nobody
            raise

    def _may_move(self, end: Finished, request: GenerationRequest) -> bool:
        """Whether the deadline alone stood in the way, with nothing done and time left.

        Work that was begun and then lost its place is charged and not asked for twice.
        """
        if end.cause is Cause.DEADLINE_INFEASIBLE:
            return True
        late = request.deadline is not None and request.deadline <= self._clock.now()
        return end.cause is Cause.RELEGATED and not end.processed_tokens and not late

    async def _ask_instead(
        self,
        fallback: ServedModel,
        first: Placed,
        principal: Principal,
        hangup: Hangup,
        ticket: Ticket,
    ) -> Placed:
        asked = first.prepared.request
        try:
            other = await self._workers.run(
                principal.tenant.id, prepare_for, fallback, self._shape, asked, principal
            )
            await _cover(ticket, other)
        except ApiError:  # it cannot answer this call at all, say for its smaller context
            return first
        again = replace(
            first.request,
            prompt=other.prompt,
            max_tokens=other.max_tokens,
            sampling=other.sampling,
            on_infeasible=OnInfeasible.REJECT,
        )
        placed = _ask(other, again, hangup, ticket)
        return replace(placed, instead_of=first.prepared.model.id)


async def _cover(ticket: Ticket, prepared: Prepared) -> None:
    output = prepared.request.n * prepared.max_tokens
    await ticket.cover(len(prepared.prompt), output, prepared.model.price)


def _ask(prepared: Prepared, request: GenerationRequest, hangup: Hangup, ticket: Ticket) -> Placed:
    generation = _generate(prepared.model.engine, request)
    hangup.cancels(generation)
    ticket.follow(generation, prepared.model.price)
    return Placed(prepared, request, generation)


def _generate(engine: Engine, request: GenerationRequest) -> Generation:
    if engine.status().state in (EngineState.STARTING, EngineState.RESTARTING):
        raise ApiError(Reason.ENGINE_NOT_READY)
    return engine.generate(request)


def _fallback(
    prepared: Prepared, request: GenerationRequest, principal: Principal
) -> ServedModel | None:
    """The model to ask next, if the call or its tenant wants that and the key allows it."""
    fallback = prepared.model.fallback
    routes = _routes(prepared, request) or prepared.request.model == AUTO
    if fallback is None or not routes or not principal.key.allows_model(fallback.id):
        return None
    return fallback


def _without_route(prepared: Prepared, request: GenerationRequest) -> str | None:
    """What the tenant chose; with nowhere to route to, that is to be refused."""
    return OnInfeasible.REJECT if _routes(prepared, request) else request.on_infeasible


def _routes(prepared: Prepared, request: GenerationRequest) -> bool:
    default = prepared.model.engine.status().config.policy.admission.on_infeasible
    return (request.on_infeasible or default) == OnInfeasible.ROUTE
