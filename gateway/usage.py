"""`GET /v1/usage` and `GET /admin/usage`: what a tenant or all used, from the ledger."""

import logging
import time
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.auth import admit
from gateway.call import Call
from gateway.errors import ApiError, Reason
from gateway.state import Gateway
from tenants.connection import RecordDamaged, StoreUnavailable
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

log = logging.getLogger("watermaster.usage")

MOST_LINES = 10_000
FORMATS = ("json", "csv")
OWN_GROUPS = GROUPS[1:]  # the tenant is one's own
PARAMETERS = ("from", "to", "key", "model", "by", "format")
OF_ALL = ("tenant", *PARAMETERS)
BY_DEFAULT = "tenant,key,model"  # of all tenants


class UsageRoute:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def usage(self, request: Request) -> Response:
        """Everything that this server has handed out is in it, unless the store is away."""
        gateway = self._gateway
        principal = await admit(Call.of(request.scope), gateway, READ)
        wanted = _parameters(request, PARAMETERS)
        question = read(wanted, OWN_GROUPS, principal.tenant.id)
        try:
            return await _report(gateway, request, question)
        except RecordDamaged as error:
            # who can mend it is not asking
            log.warning("a tenant is not told its usage: %s", error)
            raise ApiError(Reason.STORE_UNAVAILABLE, "Usage cannot be read.") from None


async def report_of_all(gateway: Gateway, request: Request) -> Response:
    """For the operator: of every tenant, or of the one that is named. Raises RecordDamaged."""
    wanted = {"by": BY_DEFAULT, **_parameters(request, OF_ALL)}
    return await _report(gateway, request, read(wanted, GROUPS, wanted.get("tenant")))


def read(wanted: Mapping[str, str], groups: Sequence[str], tenant: str | None) -> Question:
    """What the caller asks for. Raises ApiError 400."""
    try:
        return read_question(wanted, int(time.time()), groups, tenant)
    except InvalidQuestionError as error:
        raise ApiError(Reason.INVALID_VALUE, str(error), param=error.name) from None


async def _report(gateway: Gateway, request: Request, question: Question) -> Response:
    form = _format(request)
    try:
        await gateway.ledger.catch_up()
        lines = await answer(gateway.ledger.store, question, MOST_LINES)
    except RecordDamaged:
        raise
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


def _parameters(request: Request, known: Sequence[str]) -> dict[str, str]:
    """Those of the query. Raises ApiError 400 for one that is not `known`."""
    for name in request.query_params:
        if name not in known:
            raise ApiError(
                Reason.UNKNOWN_PARAMETER, f"There is no parameter {name[:64]!r}.", param=name[:64]
            )
    return dict(request.query_params)


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
