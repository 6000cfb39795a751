"""`GET /health`, `/ready` and `/metrics`, for the machinery around the server; no key is needed."""

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.host.worker import EngineState
from gateway.errors import ApiError, Reason
from gateway.state import Gateway, ServedModel
from telemetry.events import Cause
from telemetry.measures import Gauge, text_of
from telemetry.metrics import CONTENT_TYPE


class Health:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def health(self, _: Request) -> JSONResponse:
        """200 while the process is worth keeping: no engine is beyond recovery."""
        states = self._states()
        failed = EngineState.FAILED in states.values()
        return JSONResponse(
            {"status": "failed" if failed else "ok", "models": states},
            status_code=503 if failed else 200,
        )

    async def ready(self, _: Request) -> JSONResponse:
        """200 while new work is taken, 503 that says why otherwise.

        Both say how the store is and where usage is kept.
        """
        states = self._states()
        facts = {
            "models": states,
            "store": self._gateway.access.health.describe(),
            "usage": self._gateway.ledger.describe(),
        }
        if self._gateway.draining:
            raise ApiError(Cause.DRAINING, facts=facts)
        if any(state != EngineState.READY for state in states.values()):
            raise ApiError(Reason.ENGINE_NOT_READY, facts=facts)
        return JSONResponse({"status": "ready", **facts})

    async def metrics(self, _: Request) -> Response:
        """The Prometheus page."""
        gateway = self._gateway
        page = gateway.metrics() + gateway.access.health.metrics()
        page += gateway.quota.metrics() + gateway.ledger.metrics()
        page += _kv_blocks(gateway.models.values())
        return Response(page, media_type=CONTENT_TYPE)

    def _states(self) -> dict[str, str]:
        models = self._gateway.models.values()
        return {model.id: str(model.engine.status().state) for model in models}


def _kv_blocks(models: Iterable[ServedModel]) -> bytes:
    """As they are now: what work that was cancelled gives back is followed by no step's event."""
    blocks = Gauge("watermaster_kv_blocks", "KV blocks by state", ("engine", "state"))
    for model in models:
        status = model.engine.status()
        free, cached = status.load.free_blocks, status.load.cached_blocks
        blocks.set(free, model.id, "free")
        blocks.set(cached, model.id, "cached")
        blocks.set(status.config.num_blocks - free - cached, model.id, "held")
    return text_of((blocks,))
