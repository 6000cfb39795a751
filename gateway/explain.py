"""`GET /v1/requests/{id}/explain`: where the time of one's own call went.

Answers as long as the event log keeps the call's events. Other tenants are not named: what they
were served meanwhile is one number.
"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.auth import admit
from gateway.call import Call
from gateway.errors import ApiError, Reason
from gateway.lineage import check_id
from gateway.state import Gateway
from telemetry.events import Event, SequenceArrived, SequenceRefused
from telemetry.explain import explain
from telemetry.waterfall import Taken, Waterfall
from tenants.model import READ

MOST_SEQUENCES = 128  # of one request id, which callers may use again; the newest are told


class Explain:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def request(self, request: Request) -> JSONResponse:
        """Every choice of the call, with its parts; one that still runs, up to now."""
        gateway = self._gateway
        principal = await admit(Call.of(request.scope), gateway, READ)
        name = check_id("request", request.path_params["request"], Reason.INVALID_VALUE)
        tenant = principal.tenant.id
        found = await gateway.search(tenant, find_and_explain, name)
        if not found:
            raise ApiError(
                Reason.NOT_FOUND,
                f"No call {name!r} of yours is known to this server, or not any more.",
            )
        return JSONResponse(
            {
                "object": "explanation",
                "request": name,
                "sequences": [describe(model, waterfall) for model, waterfall in found],
            }
        )


def find_and_explain(events: Sequence[Event], tenant: str, request: str) -> list[Waterfall]:
    """The waterfalls of all sequences of a tenant's request, in order of arrival."""
    numbers = [
        event.sequence
        for event in events
        if isinstance(event, SequenceArrived | SequenceRefused)
        and event.lineage.request == request
        and event.lineage.tenant == tenant
    ]
    return explain(events, numbers[-MOST_SEQUENCES:]) if numbers else []


def describe(model: str, waterfall: Waterfall) -> dict[str, object]:
    """A waterfall for its own tenant, JSON-ready. Times are nanoseconds; the parts sum exactly."""
    lineage = waterfall.lineage
    own = sum(tokens for flow, tokens in waterfall.served.items() if flow[0] == lineage.tenant)
    return {
        "sequence": waterfall.sequence,
        "model": model,
        "task": lineage.task,
        "run": lineage.run,
        "attempt": lineage.attempt,
        "finished": waterfall.ended is not None,
        "cause": waterfall.cause,
        "latency_ns": waterfall.latency,
        "parts": [{"part": str(part), "ns": ns} for part, ns in waterfall.parts.items()],
        "steps": waterfall.steps,
        "tokens_served_while_queued": {
            "own": own,
            "others": sum(waterfall.served.values()) - own,
        },
        "preemptions": waterfall.times_taken,
        "last_preemptions": [_bill(waterfall, taken) for taken in waterfall.taken],
        "cancellation_lag_tokens": waterfall.lag_tokens,
    }


def _bill(waterfall: Waterfall, taken: Taken) -> dict[str, object]:
    return {
        "after_ns": taken.at - waterfall.arrived,
        "reason": taken.reason,
        "mode": taken.mode,
        "billed_to": "own" if taken.billed[0] == waterfall.lineage.tenant else "other",
        "tokens_lost": taken.tokens_lost,
        "swapped_blocks": taken.swapped_blocks,
    }
