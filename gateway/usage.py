"""`GET /v1/usage`: what one's own tenant used, from the ledger, as JSON or CSV."""

import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.auth import admit
from gateway.call import Call
from gateway.errors import ApiError, Reason
from gateway.state import Gateway
from tenants.connection import StoreUnavailable
from tenants.ledger.report import (
    GROUPS,
    InvalidQuestionError,
    Line,
    Question,
    TooManyLinesError,
    answer,
    as_csv,
    read_question,
    spell,
)
from tenants.model import READ

MOST_LINES = 10_000
FORMATS = ("json", "csv")
OWN_GROUPS = GROUPS[1:]  # the tenant is one's own
PARAMETERS = ("from", "to", "key", "model", "by", "format")


class UsageRoute:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def usage(self, request: Request) -> Response:
        """Everything that this server has handed out is in it, unless the store is away."""
        gateway = self._gateway
        principal = await admit(Call.of(request.scope), gateway, READ)
        question = read(request, principal.tenant.id)
        form = _format(request)
        try:
            await gateway.ledger.catch_up()
            lines = await answer(gateway.ledger.store, question, MOST_LINES)
        except StoreUnavailable:
            raise ApiError(
                Reason.STORE_UNAVAILABLE, "Usage cannot be read; retry after the time given."
            ) from None
        except TooManyLinesError as error:
            raise ApiError(
                Reason.INVALID_VALUE,
                f"T{str(error)[1:]}: ask for less time or by less.",
                param="by",
            ) from None
        if form == "csv":
            return Response(as_csv(question.by, lines), media_type="text/csv")
        return JSONResponse(as_json(question, lines))


def read(request: Request, tenant: str) -> Question:
    """What the caller asks for. Raises ApiError 400."""
    given = request.query_params
    for name in given:
        if name not in PARAMETERS:
            raise ApiError(
                Reason.UNKNOWN_PARAMETER, f"There is no parameter {name[:64]!r}.", param=name[:64]
            )
    wanted = {name: given[name] for name in PARAMETERS[:-1] if name in given}
    try:
        return read_question(wanted, int(time.time()), OWN_GROUPS, tenant)
    except InvalidQuestionError as error:
        raise ApiError(Reason.INVALID_VALUE, str(error), param=error.name) from None


def as_json(question: Question, lines: Sequence[Line]) -> dict[str, object]:
    return {
        "object": "usage",
        "tenant": question.tenant,
        "from": spell(question.hours.start * 3600),
        "to": spell(question.hours.stop * 3600),
        "by": question.by,
        "data": [line.describe() for line in lines],
    }


def _format(request: Request) -> str:
    wanted = "csv" if "text/csv" in request.headers.get("accept", "") else "json"
    form = request.query_params.get("format", wanted)
    if form not in FORMATS:
        raise ApiError(Reason.INVALID_VALUE, "'format' must be json or csv.", param="format")
    return form
