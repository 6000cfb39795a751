"""`GET /v1/models` and `GET /v1/models/{id}`: what the caller's key may use."""

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.auth import admit
from gateway.call import Call
from gateway.generate import find_model
from gateway.state import Gateway, ServedModel
from tenants.model import READ


class Models:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def list(self, request: Request) -> JSONResponse:
        """Every model that the key may use."""
        gateway = self._gateway
        principal = await admit(Call.of(request.scope), gateway, READ)
        allowed = [m for m in gateway.models.values() if principal.key.allows_model(m.id)]
        return JSONResponse({"object": "list", "data": [_describe(model) for model in allowed]})

    async def one(self, request: Request) -> JSONResponse:
        """One model; 404 for others."""
        gateway = self._gateway
        principal = await admit(Call.of(request.scope), gateway, READ)
        return JSONResponse(
            _describe(find_model(request.path_params["model"], principal, gateway.models))
        )


def _describe(model: ServedModel) -> dict[str, object]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "watermaster",
        "context_length": model.context,
    }
