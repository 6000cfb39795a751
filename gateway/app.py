"""The HTTP application: every route and the one middleware, composed here and nowhere else."""

from functools import partial

from starlette.exceptions import HTTPException
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admin import Admin
from gateway.backpressure import Backpressure
from gateway.chat import ChatShape
from gateway.completions import CompletionShape
from gateway.dialect import MESSAGES_PATH
from gateway.edge import Edge
from gateway.errors import ApiError, Reason
from gateway.explain import Explain
from gateway.health import Health
from gateway.idempotency import Idempotency
from gateway.inference import Inference
from gateway.messages import MessagesShape
from gateway.models import Models
from gateway.openapi import OpenApi
from gateway.pressure import PressureDesk
from gateway.state import Gateway
from gateway.task_state import TaskState
from gateway.tasks import Tasks
from gateway.usage import UsageRoute


def build_app(gateway: Gateway) -> ASGIApp:
    """The ASGI application that serves `gateway`."""
    return Edge(_Routed(build_routes(gateway)), gateway)


def build_routes(gateway: Gateway) -> list[Route]:
    """Everything that is served."""
    health, models, desk = Health(gateway), Models(gateway), PressureDesk()
    keyed = Idempotency(
        gateway.access.store.calls, gateway.access.departed.replica.place, gateway.clock, desk
    )
    answers = partial(Inference, gateway, keyed)
    return [
        Route("/v1/chat/completions", answers(ChatShape()), methods=["POST"]),
        Route("/v1/completions", answers(CompletionShape()), methods=["POST"]),
        Route(MESSAGES_PATH, answers(MessagesShape()), methods=["POST"]),
        Route("/v1/models", models.list),
        Route("/v1/models/{model:path}", models.one),
        Route("/v1/backpressure", Backpressure(gateway, desk), methods=["GET"]),
        Route("/v1/tasks/{task}", TaskState(gateway).task),
        *Tasks(gateway).routes(),
        *Admin(gateway).routes(),
        Route("/v1/usage", UsageRoute(gateway).usage),
        Route("/v1/requests/{request}/explain", Explain(gateway).request),
        Route("/health", health.health),
        Route("/ready", health.ready),
        Route("/metrics", health.metrics),
        Route("/openapi.json", OpenApi().document),
    ]


class _Routed:
    """The routes, with the router's own refusals in our shape."""

    def __init__(self, routes: list[Route]) -> None:
        self._routes = routes
        self._router = Router(routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # within an application, the router raises instead of answering
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            if error.status_code != 405:
                raise ApiError(Reason.NOT_FOUND) from None
            raise ApiError(
                Reason.METHOD_NOT_ALLOWED, headers={"allow": self._methods(scope)}
            ) from None

    def _methods(self, scope: Scope) -> str:
        """Those of every route at the path; the router names the first one's only."""
        at_path = [route for route in self._routes if route.matches(scope)[0] is not Match.NONE]
        return ", ".join(sorted({method for route in at_path for method in route.methods or ()}))
