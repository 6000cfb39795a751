"""One model call from HTTP to the engine and back; the ASGI endpoint of both shapes."""

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from engine.core.commands import FlowNode
from engine.host.engine import GenerationRequest
from engine.host.worker import EngineState
from gateway.answer import Answer
from gateway.auth import authenticate
from gateway.body import read_body
from gateway.call import Call
from gateway.connection import abort
from gateway.deadlines import Deadlines, TimeLimits, read_deadlines, resolve
from gateway.errors import ApiError, Reason
from gateway.generate import Prepared, Shape, prepare
from gateway.hangup import Hangup
from gateway.lineage import read_ids
from gateway.sse import EventStream, StalledError
from gateway.state import Gateway
from telemetry.clock import NANOSECONDS
from telemetry.events import Cause
from telemetry.lineage import Lineage
from tenants.model import INFERENCE, Principal


@dataclass(frozen=True, slots=True)
class Admission:
    """Who calls, under which identities, until when."""

    principal: Principal
    lineage: Lineage
    deadlines: Deadlines


class Inference:
    """`POST` of one shape. What can be refused cheaply is refused before the body is read."""

    def __init__(self, gateway: Gateway, shape: Shape[Any]) -> None:
        self._gateway = gateway
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call.of(scope)
        limits = self._gateway.limits
        admission = await self._admit(call)
        with self._gateway.slots.hold(admission.principal.tenant.id):
            body = await read_body(
                call.headers, receive, limits.max_body_bytes, limits.body_timeout
            )
            async with Hangup(receive) as hangup:
                prepared = await self._prepare(body, admission.principal)
                await self._serve(prepared, admission, hangup, scope, send)

    async def _admit(self, call: Call) -> Admission:
        gateway = self._gateway
        if gateway.draining:
            raise ApiError(Cause.DRAINING)
        principal = await authenticate(call.headers, gateway.authenticator, INFERENCE)
        ids = read_ids(call.headers, call.request_id)
        lineage = ids.lineage(principal.tenant.id)
        instants, timeouts = read_deadlines(call.headers, gateway.clock)
        if ids.task is not None and timeouts.end is not None:
            fixed = gateway.task_deadlines.fix(lineage.tenant, ids.task, timeouts.end)
            timeouts = Deadlines(fixed, timeouts.first_token)
        tenant = principal.tenant
        ceiling = TimeLimits(tenant.default_timeout_ms, tenant.max_timeout_ms)
        return Admission(principal, lineage, resolve(instants, timeouts, call.arrived, ceiling))

    async def _prepare(self, body: bytes, principal: Principal) -> Prepared:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._gateway.workers, prepare, self._shape, body, principal, self._gateway.models
        )

    async def _serve(
        self, prepared: Prepared, admission: Admission, hangup: Hangup, scope: Scope, send: Send
    ) -> None:
        engine = prepared.model.engine
        if engine.status().state in (EngineState.STARTING, EngineState.RESTARTING):
            raise ApiError(Reason.ENGINE_NOT_READY)
        generation = engine.generate(_request(prepared, admission))
        created = self._gateway.clock.wall() // NANOSECONDS
        answer = Answer(self._shape, prepared, generation, created)
        limits = self._gateway.limits
        try:
            hangup.cancels(generation)
            if prepared.request.stream:
                await answer.stream(EventStream(send, limits.keepalive, limits.write_timeout))
            else:
                await answer.whole(send)
        except StalledError:
            generation.cancel(Cause.SLOW_READER)
            abort(scope)
            await hangup.wait()
        finally:
            # Whatever went wrong above, nothing goes on computing for nobody.
            generation.cancel(Cause.DISCONNECTED)


def _request(prepared: Prepared, admission: Admission) -> GenerationRequest:
    tenant = admission.principal.tenant
    return GenerationRequest(
        lineage=admission.lineage,
        flow=(FlowNode(tenant.id, tenant.weight),),
        prompt=prepared.prompt,
        n=prepared.request.n,
        max_tokens=prepared.max_tokens,
        sampling=prepared.sampling,
        deadline=admission.deadlines.end,
        first_token_deadline=admission.deadlines.first_token,
        queue_requests=tenant.queue_requests,
        queue_tokens=tenant.queue_tokens,
    )
