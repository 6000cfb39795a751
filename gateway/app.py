"""The HTTP application: every route and the one middleware, composed here and nowhere else."""

from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

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


def build_app(gateway: Gateway) -> Starlette:
    """The ASGI application that serves `gateway`."""
    health, models, desk = Health(gateway), Models(gateway), PressureDesk()
    keyed = Idempotency(gateway.access.store.calls, gateway.clock, desk)
    answers = partial(Inference, gateway, keyed)
    app = Starlette(
        routes=[
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
        ],
        middleware=[Middleware(Edge, clock=gateway.clock)],
        exception_handlers={HTTPException: _raise_ours},
    )
    app.router.redirect_slashes = False
    return app


async def _raise_ours(request: Request, error: Exception) -> Response:
    """The router's own refusals, in our shape."""
    assert isinstance(error, HTTPException)
    if error.status_code != 405:
        raise ApiError(Reason.NOT_FOUND)
    raise ApiError(Reason.METHOD_NOT_ALLOWED, headers={"allow": _methods(request)})


def _methods(request: Request) -> str:
    """Those of every route at the path; the router names the first one's only."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    at_path = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in at_path for method in route.methods or ()}))
