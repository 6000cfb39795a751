"""`GET /v1/backpressure`: how much work one's own tenant had better bring now, once or as a stream.

With `accept: text/event-stream` a new state is told whenever it changes, until the caller hangs up.
"""

from collections.abc import Mapping
from typing import cast

from starlette.types import Receive, Scope, Send

from engine.core.pressure import Inquiry, Pressure
from engine.host.worker import EngineState
from gateway.auth import admit, authenticate
from gateway.call import Call, send_json
from gateway.connection import connection_of
from gateway.errors import TABLE, ApiError, Reason
from gateway.flows import flow_of
from gateway.hangup import Hangup
from gateway.lineage import read_ids
from gateway.pressure import PressureDesk
from gateway.slots import Slots
from gateway.sse import EventStream, StalledError
from gateway.state import Gateway, ServedModel
from telemetry.events import Cause
from telemetry.units import MILLISECOND
from tenants.model import READ, Principal, Tenant

INTERVAL = 0.5  # seconds between two states of a stream
MOST_STREAMS = 64
MOST_OF_A_TENANT = 8

State = Mapping[str, object]


class Backpressure:
    """Whoever holds a key of the tenant may look. A stream ends when the key does."""

    def __init__(self, gateway: Gateway, desk: PressureDesk) -> None:
        self._gateway = gateway
        self._desk = desk
        self._streams = Slots(MOST_STREAMS, MOST_OF_A_TENANT)

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        call = Call.of(scope)
        principal = await admit(call, self._gateway, READ)
        wanted = call.headers.get("accept", "")
        if "text/event-stream" not in wanted or scope["method"] == "HEAD":
            await send_json(send, await self._state(call, principal))
            return
        limits = self._gateway.limits
        events = EventStream(send, call, limits.keepalive, limits.write_timeout)
        connection = connection_of(scope)
        with self._streams.hold(principal.tenant.id), Hangup(connection) as hangup:
            try:
                await self._stream(events, call, await self._state(call, principal), hangup)
            except StalledError:
                connection.abort()
                await hangup.wait()

    async def _stream(self, events: EventStream, call: Call, state: State, hangup: Hangup) -> None:
        told: State | None = state

        async def next_state() -> State | None:
            """One that was not told yet; None after a hang-up."""
            while not await hangup.within(INTERVAL):
                key = await authenticate(call.headers, self._gateway.authenticator, READ)
                state = await self._state(call, key)
                if told is None or _lasting(state) != _lasting(told):
                    return state
            return None

        await events.open()
        while told is not None:
            await events.write([told])
            if told["draining"]:
                await events.close()
                return
            try:
                told = await events.during(next_state)
            except ApiError as error:  # the key has ended meanwhile
                await events.fail(error)
                return

    async def _state(self, call: Call, principal: Principal) -> State:
        """Of a call sent now with these headers; one that names no task counts as a new one."""
        gateway = self._gateway
        tenant = principal.tenant
        lineage = read_ids(call.headers, "").lineage(tenant.id)
        inquiry = Inquiry(
            flow_of(principal, lineage, gateway.limits.domain),
            tenant.queue_requests,
            tenant.queue_tokens,
        )
        return {
            "object": "backpressure",
            "tenant": tenant.id,
            "draining": gateway.draining,
            "limits": gateway.quota.describe(tenant),
            "models": [
                await self._of_model(model, inquiry, tenant)
                for model in gateway.models.values()
                if principal.key.allows_model(model.id)
            ],
        }

    async def _of_model(self, model: ServedModel, inquiry: Inquiry, tenant: Tenant) -> State:
        gateway = self._gateway
        state = model.engine.status().state
        told = await self._desk.ask(model, inquiry) if state is EngineState.READY else None
        if told is None:  # there is nothing to be had of it for a while
            wait = TABLE[Reason.ENGINE_NOT_READY].wait_ms
            return {"model": model.id, "state": state, "retry_after_ms": wait}
        full = None if told.retry_after is None else -(-told.retry_after // MILLISECOND)
        open_calls = gateway.limits.max_tenant_requests
        if tenant.concurrency is not None:
            open_calls = min(open_calls, tenant.concurrency)
        return {
            "model": model.id,
            "state": state,
            **_describe(told),
            "feasible_parallelism": min(told.parallel, open_calls),
            "retry_after_ms": TABLE[Cause.DRAINING].wait_ms if gateway.draining else full,
        }


def _lasting(state: State) -> State:
    """`state` without the times until limits are whole again: they pass, which changes nothing."""
    limits = cast("list[dict[str, object]]", state["limits"])
    return {**state, "limits": [{**one, "reset_ms": None} for one in limits]}


def _describe(told: Pressure) -> State:
    return {
        "running_requests": told.running,
        "queued_requests": told.queued,
        "queued_tokens": told.queued_tokens,
        "max_queued_requests": told.max_queued,
        "max_queued_tokens": told.max_queued_tokens,
        "promised_requests": told.promised,
        "estimated_start_ms": _milliseconds(told.start),
        "estimated_call_ms": _milliseconds(told.duration),
        "token_debt": round(told.debt),
    }


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
