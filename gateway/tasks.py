"""Cancelling: `DELETE /v1/tasks/{task}` and what lies under it, and `POST /v1/tasks/{task}/commit`.

The first cancels everything in its scope. The second says that a race is won, which cancels all of
the task but the winning attempt. What arrives for cancelled work later is refused. A task that does
not exist answers like one that does, as does another tenant's, so that nobody learns of ids that
are not theirs.
"""

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from engine.core.commands import Cancel
from gateway.auth import authenticate
from gateway.body import read_body
from gateway.call import Call
from gateway.commits import parse_commit
from gateway.errors import ApiError, Reason
from gateway.lineage import check_id
from gateway.state import Gateway
from telemetry.events import Cause
from telemetry.lineage import Scope
from tenants.model import INFERENCE

PARTS = ("task", "run", "attempt", "request")
COMMIT_BYTES = 4096  # more than the longest ids need


class Tasks:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        """One path for each depth: `/v1/tasks/{task}`, `/v1/tasks/{task}/runs/{run}`, …"""
        paths = ["/v1"]
        for part in PARTS:
            paths.append(f"{paths[-1]}/{part}s/{{{part}}}")
        return [
            *(Route(path, self.cancel, methods=["DELETE"]) for path in paths[1:]),
            Route("/v1/tasks/{task}/commit", self.commit, methods=["POST"]),
        ]

    async def cancel(self, request: Request) -> JSONResponse:
        """Post the cancellation; it takes effect before the next step."""
        scope = await self._named(request)
        self._post(request, scope, Cause.CANCELLED)
        return JSONResponse({"object": "cancellation", **request.path_params, "cancelled": True})

    async def commit(self, request: Request) -> JSONResponse:
        """Post the end of the race, once: a second winner is refused with 409."""
        scope = await self._named(request)
        limits = self._gateway.limits
        body = await read_body(request.headers, request.receive, COMMIT_BYTES, limits.body_timeout)
        named = {
            part: check_id(part, text, Reason.INVALID_VALUE)
            for part, text in parse_commit(body).named().items()
        }
        task = request.path_params["task"]
        winner = Scope(scope.tenant, task, **named)
        first = self._gateway.commits.settle(scope.tenant, task, winner)
        if first != winner:
            raise _conflict(first)
        self._post(request, scope, Cause.LOST_RACE, winner)
        return JSONResponse({"object": "commitment", "task": task, **named, "committed": True})

    async def _named(self, request: Request) -> Scope:
        """What the path names, of the caller's tenant."""
        principal = await authenticate(request.headers, self._gateway.authenticator, INFERENCE)
        named = {
            part: check_id(part, text, Reason.INVALID_VALUE)
            for part, text in request.path_params.items()
        }
        return Scope(principal.tenant.id, **named)

    def _post(
        self, request: Request, scope: Scope, cause: Cause, spare: Scope | None = None
    ) -> None:
        received = Call.of(request.scope).arrived
        command = Cancel(scope, cause, remember=True, spare=spare, received=received)
        for model in self._gateway.models.values():
            model.engine.post(command)


def _conflict(first: Scope) -> ApiError:
    where = f" of run {first.run!r}" if first.run else ""
    return ApiError(
        Reason.COMMIT_CONFLICT,
        f"Attempt {first.attempt!r}{where} of this task was committed before, and a race has one "
        "winner; start another task for another race.",
        param="attempt",
        facts={"committed": {"attempt": first.attempt, "run": first.run}},
    )
