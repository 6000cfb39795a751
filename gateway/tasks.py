"""`DELETE /v1/tasks/{task}` and what lies under it: cancel everything in that scope.

A task that does not exist answers like one that does, as does another tenant's, so that nobody
learns of ids that are not theirs. What arrives under the scope later is refused.
"""

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from engine.core.commands import Cancel
from gateway.auth import authenticate
from gateway.errors import Reason
from gateway.lineage import check_id
from gateway.state import Gateway
from telemetry.events import Cause
from telemetry.lineage import Scope
from tenants.model import INFERENCE

PARTS = ("task", "run", "attempt", "request")


class Tasks:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        """One path for each depth: `/v1/tasks/{task}`, `/v1/tasks/{task}/runs/{run}`, …"""
        paths = ["/v1"]
        for part in PARTS:
            paths.append(f"{paths[-1]}/{part}s/{{{part}}}")
        return [Route(path, self.cancel, methods=["DELETE"]) for path in paths[1:]]

    async def cancel(self, request: Request) -> JSONResponse:
        """Post the cancellation; it takes effect before the next step."""
        gateway = self._gateway
        principal = await authenticate(request.headers, gateway.authenticator, INFERENCE)
        named = {
            part: check_id(part, text, Reason.INVALID_VALUE)
            for part, text in request.path_params.items()
        }
        scope = Scope(principal.tenant.id, **named)
        for model in gateway.models.values():
            model.engine.post(Cancel(scope, Cause.CANCELLED, remember=True))
        return JSONResponse({"object": "cancellation", **named, "cancelled": True})
