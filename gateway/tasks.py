"""Cancelling: `DELETE /v1/tasks/{task}` and what lies under it, and `POST /v1/tasks/{task}/commit`.

The first cancels everything in its scope. The second says that a race is won, which cancels all of
the task but the winning attempt. Both take effect on every server of the store, and what arrives
for cancelled work later is refused by all. A task that does not exist answers like one that does,
as does another tenant's, so that nobody learns of ids that are not theirs.
"""

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from engine.core.commands import Cancel
from gateway.auth import admit
from gateway.body import read_body
from gateway.call import Call
from gateway.commits import parse_commit
from gateway.errors import ApiError, Reason
from gateway.lineage import check_id
from gateway.state import Gateway
from telemetry.events import Cause
from telemetry.lineage import Scope
from tenants.cancellations import Cancellation
from tenants.connection import RecordDamaged
from tenants.model import INFERENCE

PARTS = ("task", "run", "attempt", "request")
COMMIT_BYTES = 4096  # more than the longest ids need


class Tasks:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._courier = gateway.access.courier
        self._courier.attach(self._act)

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
        self._post(scope, None, Call.of(request.scope).arrived)
        await self._courier.tell(scope)
        return JSONResponse({"object": "cancellation", **request.path_params, "cancelled": True})

    async def commit(self, request: Request) -> JSONResponse:
        """Post the end of the race, once: a second winner is refused with 409.

        With other servers about, the store has to say first who has won.
        """
        scope = await self._named(request)
        limits = self._gateway.limits
        body = await read_body(request.headers, request.receive, COMMIT_BYTES, limits.body_timeout)
        named = {
            part: check_id(part, text, Reason.INVALID_VALUE)
            for part, text in parse_commit(body).named().items()
        }
        task, arrived = request.path_params["task"], Call.of(request.scope).arrived
        winner = Scope(scope.tenant, task, **named)
        first = self._gateway.commits.settle(scope.tenant, task, winner)
        if first != winner:
            raise _conflict(first)
        alone = self._gateway.access.alone
        if alone:
            self._post(scope, winner, arrived)
        try:
            first = await self._courier.commit(scope, winner)
        except RecordDamaged:
            raise ApiError(
                Reason.STORE_UNAVAILABLE, "Whether somebody has won this race cannot be read."
            ) from None
        if first != winner:
            self._gateway.commits.correct(scope.tenant, task, first)
            raise _conflict(first)
        if not alone:
            self._post(scope, winner, arrived)
        return JSONResponse({"object": "commitment", "task": task, **named, "committed": True})

    async def _named(self, request: Request) -> Scope:
        """What the path names, of the caller's tenant."""
        principal = await admit(Call.of(request.scope), self._gateway, INFERENCE)
        named = {
            part: check_id(part, text, Reason.INVALID_VALUE)
            for part, text in request.path_params.items()
        }
        return Scope(principal.tenant.id, **named)

    def _act(self, told: Cancellation) -> None:
        """Another server tells of a cancellation."""
        scope, winner = told.scope, told.spare
        if winner is not None and scope.task is not None:
            self._gateway.commits.correct(scope.tenant, scope.task, winner)
        self._post(scope, winner, self._gateway.clock.now())

    def _post(self, scope: Scope, winner: Scope | None, received: int) -> None:
        cause = Cause.CANCELLED if winner is None else Cause.LOST_RACE
        command = Cancel(scope, cause, remember=True, spare=winner, received=received)
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
