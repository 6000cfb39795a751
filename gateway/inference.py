"""One model call from HTTP to the engine and back; the ASGI endpoint of every shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from engine.host.engine import GenerationRequest
from gateway import routed
from gateway.answer import Answer
from gateway.auth import admit
from gateway.baggage import told_of
from gateway.body import read_body
from gateway.call import Call, RawHeaders
from gateway.connection import connection_of
from gateway.deadlines import Deadlines, TimeLimits, read_deadlines, resolve
from gateway.errors import TABLE, ApiError, Reason, Row
from gateway.flows import flow_of
from gateway.generate import prepare
from gateway.hangup import Hangup
from gateway.idempotency import Idempotency, read_payload
from gateway.lineage import read_ids
from gateway.quota import Ticket
from gateway.recording import Recording
from gateway.returns import Return, read_return
from gateway.routing import Placed, Router
from gateway.shape import Prepared, Shape
from gateway.sse import EventStream, StalledError
from gateway.state import Gateway
from telemetry import semconv
from telemetry.events import CallAnswered, CallSubmitted, Cause
from telemetry.lineage import Lineage
from telemetry.tracing import RequestTrace
from telemetry.units import SECOND
from tenants.calls import CallName
from tenants.model import INFERENCE, Principal, Tenant

T = TypeVar("T")

SHORT_BODY = 1024  # bytes that are read sooner than a worker thread would have woken up


@dataclass(frozen=True, slots=True)
class Admission:
    """Who calls, under which identities, until when, and whether for the first time.

    `passed_over`: members of its baggage.
    """

    principal: Principal
    lineage: Lineage
    deadlines: Deadlines
    comeback: Return
    passed_over: tuple[str, ...] = ()


class Inference:
    """`POST` of one shape. What can be refused cheaply is refused before the body is read."""

    def __init__(self, gateway: Gateway, keyed: Idempotency, shape: Shape[Any]) -> None:
        self._gateway = gateway
        self._shape = shape
        self._keyed = keyed
        self._router = Router(shape, gateway.workers, gateway.clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway, call = self._gateway, Call.of(scope)
        trace = gateway.tracing.start(self._shape.operation, call.headers, call.arrived)
        try:
            admission = await self._admit(call)
            answer = self._once if admission.comeback.key else self._anew
            with gateway.slots.hold(admission.principal.tenant.id):
                await answer(admission, trace, scope, receive, send)
        except ApiError as error:
            trace.finish(call.dialect.status(error.row), error=error.row.code)
            raise
        finally:
            trace.finish(500, error=TABLE[Reason.INTERNAL].code)  # unless it is finished by now

    async def _anew(
        self, admission: Admission, trace: RequestTrace, scope: Scope, receive: Receive, send: Send
    ) -> None:
        with await self._gateway.quota.open(admission.principal.tenant) as ticket:
            body = await self._read(scope, receive)
            with Hangup(connection_of(scope)) as hangup:
                await self._serve(body, admission, ticket, trace, hangup, scope, send)

    async def _once(
        self, admission: Admission, trace: RequestTrace, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a call under an idempotency key; only who is the first of it takes of limits."""
        gateway, principal = self._gateway, admission.principal
        tenant, key = principal.tenant, admission.comeback.key
        assert key is not None
        body = await self._read(scope, receive)

        async def run(recording: Recording) -> Row | None:
            with await gateway.quota.open(tenant) as ticket, Hangup(recording) as hangup:
                return await self._serve(
                    body, admission, ticket, trace, hangup, scope, recording.send
                )

        with Hangup(connection_of(scope)) as hangup:
            read = partial(read_payload, scope["path"], body, principal, gateway.models)
            asked = await self._look_into(body, tenant, read)
            name = CallName(tenant.id, key, asked.print)
            reader = await self._keyed.read(name, asked.model, run)
            hangup.cancels(reader)
            end = admission.deadlines.end if reader.joins else None  # the first one's is the run's
            wait = None if end is None else (end - gateway.clock.now()) / SECOND
            try:
                done = await reader.play(
                    send, gateway.limits.write_timeout, wait, principal.key.allows_model
                )
            except TimeoutError:
                raise ApiError(Cause.DEADLINE, facts={"cause": str(Cause.DEADLINE)}) from None
            except StalledError:
                connection_of(scope).abort()
                await hangup.wait()
                done = False
        gone = TABLE[Cause.DISCONNECTED]
        trace.finish(200 if done else gone.status, error=None if done else gone.code)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        limits = self._gateway.limits
        headers = Call.of(scope).headers
        return await read_body(headers, receive, limits.max_body_bytes, limits.body_timeout)

    async def _admit(self, call: Call) -> Admission:
        gateway = self._gateway
        if gateway.draining:
            raise ApiError(Cause.DRAINING)
        if gateway.ledger.full:
            raise ApiError(Reason.USAGE_UNRECORDED)
        principal = await admit(call, gateway, INFERENCE)
        ids = read_ids(call.headers, call.request_id)
        if ids.passed_over:
            call.told.append(partial(told_of, ids.passed_over))
        lineage = ids.lineage(principal.tenant.id, principal.key.public_id)
        instants, timeouts = read_deadlines(call.headers, gateway.clock)
        if ids.task is not None and timeouts.end is not None:
            fixed = gateway.task_deadlines.fix(lineage.tenant, ids.task, timeouts.end)
            timeouts = Deadlines(fixed, timeouts.first_token)
        tenant = principal.tenant
        ceiling = TimeLimits(tenant.default_timeout_ms, tenant.max_timeout_ms)
        deadlines = resolve(instants, timeouts, call.arrived, ceiling)
        comeback = read_return(call.headers, ids)
        return Admission(principal, lineage, deadlines, comeback, ids.passed_over)

    async def _look_into(self, body: bytes, tenant: Tenant, look: Callable[[], T]) -> T:
        """What `look` finds in a body; other calls go on while it looks into a long one."""
        if len(body) <= SHORT_BODY:
            return look()
        return await self._gateway.workers.run(tenant.id, look)

    async def _serve(
        self,
        body: bytes,
        admission: Admission,
        ticket: Ticket,
        trace: RequestTrace,
        hangup: Hangup,
        scope: Scope,
        send: Send,
    ) -> Row | None:
        """Compute the answer and write it; returns what a stream failed of in-band, if it did."""
        gateway, principal = self._gateway, admission.principal
        check = partial(prepare, self._shape, body, principal, gateway.models)
        prepared = await self._look_into(body, principal.tenant, check)
        request = _request(prepared, admission, gateway.limits.domain)
        placed = await self._router.place(prepared, request, principal, hangup, ticket)
        prepared, generation = placed.prepared, placed.generation
        if trace.recorded:
            _describe(trace, placed, admission.passed_over)
        trace.follow(generation.sequences)
        clock, history = gateway.clock, prepared.model.history
        call = Call.of(scope)
        history.record(
            CallSubmitted(clock.now(), call.arrived, request.lineage, generation.sequences)
        )
        created = clock.wall() // SECOND
        answer = Answer(self._shape, prepared, generation, created)
        more = routed.headers_of(prepared.model.id) if placed.instead_of else []
        failure: Row | None = None
        try:
            if prepared.request.stream:
                failure = await self._stream(answer, principal.tenant, call, send, more)
            else:
                await answer.whole(send, more)
        except StalledError:
            generation.cancel(Cause.SLOW_READER)
            connection_of(scope).abort()
            await hangup.wait()
            failure = TABLE[Cause.SLOW_READER]
        finally:
            # Whatever went wrong above, nothing goes on computing for nobody.
            generation.cancel(Cause.DISCONNECTED)
            history.record(CallAnswered(clock.now(), generation.sequences))
        attributes = answer.attributes() if trace.recorded else None
        trace.finish(200, error=failure.code if failure else None, attributes=attributes)
        return failure

    async def _stream(
        self, answer: Answer, tenant: Tenant, call: Call, send: Send, more: RawHeaders
    ) -> Row | None:
        """Write the answer; returns what it failed of in-band, if it did."""
        limits, delay = self._gateway.limits, tenant.stream_header_delay_ms
        events = EventStream(send, call, limits.keepalive, limits.write_timeout, more)
        error = await answer.stream(events, None if delay is None else delay / 1000)
        return error.row if error else None


def _request(prepared: Prepared, admission: Admission, domain: str) -> GenerationRequest:
    tenant = admission.principal.tenant
    return GenerationRequest(
        lineage=admission.lineage,
        flow=flow_of(admission.principal, admission.lineage, domain, prepared.request.end_user),
        prompt=prepared.prompt,
        n=prepared.request.n,
        max_tokens=prepared.max_tokens,
        sampling=prepared.sampling,
        deadline=admission.deadlines.end,
        first_token_deadline=admission.deadlines.first_token,
        queue_requests=tenant.queue_requests,
        queue_tokens=tenant.queue_tokens,
        tpot_target=None if tenant.tpot_target_ms is None else tenant.tpot_target_ms / 1000,
        admission=tenant.admission,
        on_infeasible=tenant.on_infeasible,
        on_expiry=tenant.on_expiry,
        claims=admission.comeback.names,
        retry=admission.comeback.retry,
    )


def _describe(trace: RequestTrace, placed: Placed, passed_over: Sequence[str]) -> None:
    prepared, request = placed.prepared, placed.request
    sampling = request.sampling
    trace.describe(
        prepared.model.id,
        request.lineage,
        [node.name for node in request.flow],
        request.deadline,
        {
            semconv.REQUEST_CHOICES: request.n,
            semconv.REQUEST_MAX_TOKENS: request.max_tokens,
            semconv.REQUEST_SEED: prepared.request.seed,
            semconv.REQUEST_STREAM: prepared.request.stream,
            semconv.REQUEST_TEMPERATURE: sampling.temperature,
            semconv.REQUEST_TOP_K: sampling.top_k or None,
            semconv.REQUEST_TOP_P: sampling.top_p,
            semconv.IGNORED_BAGGAGE: ", ".join(passed_over) or None,
            semconv.INSTEAD_OF: placed.instead_of,
            semconv.ROUTED: routed.ONLY_REASON if placed.instead_of else None,
        },
    )
