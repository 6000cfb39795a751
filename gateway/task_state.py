"""`GET /v1/tasks/{task}`: how one's own task stands, across everything that was done for it.

Each server answers as long as its event log keeps events of the task's arrivals; a task nobody of
the tenant has named answers like another tenant's.
"""

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.auth import admit
from gateway.call import Call
from gateway.errors import Reason
from gateway.everywhere import Everywhere
from gateway.lineage import check_id
from gateway.state import Gateway
from gateway.task_part import TaskPart, describe, read_part, task_part
from telemetry.task_history import tell
from tenants.model import READ


class TaskState:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._everywhere = Everywhere(gateway, "task", "task", self._part, read_part)

    async def task(self, request: Request) -> JSONResponse:
        """Every sequence under the task, on all models of all servers."""
        principal = await admit(Call.of(request.scope), self._gateway, READ)
        name = check_id("task", request.path_params["task"], Reason.INVALID_VALUE)
        found = await self._everywhere.find(principal.tenant.id, name)
        return JSONResponse(
            {"object": "task", "task": name, **found.standing(), **describe(found.parts)}
        )

    async def _part(self, tenant: str, task: str) -> TaskPart | None:
        """What this server has done of it."""
        gateway = self._gateway
        told = [found for _, found in await gateway.search(tenant, tell, task)]
        return (
            task_part(told, gateway.commits.winner(tenant, task), gateway.epoch) if told else None
        )
