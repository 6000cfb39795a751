"""`GET /v1/requests/{id}/explain`: where the time of one's own call went.

Each server answers as long as its event log keeps the call's events. Other tenants are not named:
what they were served meanwhile is one number.
"""

from collections.abc import Sequence

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.auth import admit
from gateway.call import Call
from gateway.errors import Reason
from gateway.everywhere import MOST_SEQUENCES, Dated, Everywhere, newest
from gateway.lineage import check_id
from gateway.state import Gateway
from telemetry.events import Event, SequenceArrived, SequenceRefused
from telemetry.explain import explain
from telemetry.waterfall import Taken, Waterfall
from tenants.model import READ

read_part = TypeAdapter(list[Dated]).validate_python


class Explain:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._everywhere = Everywhere(gateway, "explanation", "call", self._part, read_part)

    async def request(self, request: Request) -> JSONResponse:
        """Every choice of the call, with its parts; one that still runs, up to now."""
        principal = await admit(Call.of(request.scope), self._gateway, READ)
        name = check_id("request", request.path_params["request"], Reason.INVALID_VALUE)
        found = await self._everywhere.find(principal.tenant.id, name)
        return JSONResponse(
            {
                "object": "explanation",
                "request": name,
                **found.standing(),
                "sequences": [one for _, one in newest(found.parts)],
            }
        )

    async def _part(self, tenant: str, request: str) -> list[Dated] | None:
        """The sequences of it that this server has computed or refused."""
        epoch = self._gateway.epoch
        found = await self._gateway.search(tenant, find_and_explain, request)
        dated = [(epoch + one.arrived, describe(model, one)) for model, one in found]
        return newest([dated]) or None


def find_and_explain(events: Sequence[Event], tenant: str, request: str) -> list[Waterfall]:
    """The waterfalls of a tenant's request's newest sequences, in order of arrival.

    Callers may use a request's id again.
    """
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
