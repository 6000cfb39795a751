"""`GET /v1/tasks/{task}`: how one's own task stands, across everything that was done for it.

Answers as long as the event log keeps events of the task's arrivals; a task nobody of the tenant
has named answers like another tenant's.
"""

from collections import Counter
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.auth import admit
from gateway.call import Call
from gateway.choices import Usage
from gateway.errors import ApiError, Reason
from gateway.lineage import check_id
from gateway.openai_answer import spell_usage
from gateway.state import Gateway
from telemetry.events import Phase
from telemetry.task_history import Told, tell
from tenants.model import READ

ENDED, REFUSED = "ended", "refused"
STATES = (*map(str, Phase), ENDED, REFUSED)
MOST_SEQUENCES = 128  # listed one by one, the newest; the sums are of all


class TaskState:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def task(self, request: Request) -> JSONResponse:
        """Every sequence under the task, on all models."""
        gateway = self._gateway
        principal = await admit(Call.of(request.scope), gateway, READ)
        name = check_id("task", request.path_params["task"], Reason.INVALID_VALUE)
        tenant = principal.tenant.id
        told = [found for _, found in await gateway.search(tenant, tell, name)]
        if not told:
            raise ApiError(
                Reason.NOT_FOUND,
                f"No task {name!r} of yours is known to this server, or not any more.",
            )
        winner = gateway.commits.winner(tenant, name)
        return JSONResponse(
            {
                "object": "task",
                "task": name,
                "committed": winner and {"attempt": winner.attempt, "run": winner.run},
                **describe(sorted(told, key=lambda one: one.arrived)),
            }
        )


def describe(told: Sequence[Told]) -> dict[str, object]:
    """A task's sequences in order of arrival, summed up and JSON-ready."""
    usages = [_usage(one) for one in told]
    total = Usage(
        prompt=sum(usage.prompt for usage in usages),
        cached=sum(usage.cached for usage in usages),
        output=sum(usage.output for usage in usages),
    )
    states = Counter(map(_state, told))
    return {
        "states": {state: states[state] for state in STATES},
        "causes": Counter(str(one.cause) for one in told if one.cause is not None),
        "usage": spell_usage(total),
        "cancellation_lag_tokens": sum(one.lag_tokens for one in told),
        "sequences": [
            _sequence(one, usage)
            for one, usage in list(zip(told, usages, strict=True))[-MOST_SEQUENCES:]
        ],
    }


def _sequence(told: Told, usage: Usage) -> dict[str, object]:
    lineage = told.lineage
    return {
        "sequence": told.sequence,
        "run": lineage.run,
        "attempt": lineage.attempt,
        "request": lineage.request,
        "state": _state(told),
        "cause": told.cause,
        "ended_in": told.phase if told.cause is not None else None,
        "usage": spell_usage(usage),
        "cancellation_lag_tokens": told.lag_tokens,
    }


def _state(told: Told) -> str:
    if told.cause is None:
        return str(told.phase)
    return REFUSED if told.phase is None else ENDED


def _usage(told: Told) -> Usage:
    if not told.first:
        return Usage(0, 0, told.output_tokens)
    return Usage(told.prompt_tokens, told.cached_tokens, told.output_tokens)
