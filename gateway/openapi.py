"""`GET /openapi.json`: the OpenAPI document of every route, made from `gateway.operations`."""

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway import openapi_bodies
from gateway import openapi_headers as headers
from gateway.dialect import Dialect, dialect_of
from gateway.errors import TABLE, Row
from gateway.lineage import ID_SCHEMA
from gateway.openapi_bodies import REF
from gateway.operations import OPERATIONS, Operation
from tenants.keys import PUBLIC_ID_PATTERN
from tenants.model import TENANT_PATTERN

Json = dict[str, Any]

_ABOUT = (
    "Calls need a tenant's key, those under /admin the admin key. Beside what is listed, every "
    "path may answer 404, 405, 408 and 431 for what never became a call, and 503 where too many "
    "connections are open."
)
_IN_PATH: Json = {  # the others are ids of calls
    "model": {"type": "string", "maxLength": 256},
    "tenant": {"type": "string", "pattern": f"^{TENANT_PATTERN}$"},
    "key": {"type": "string", "pattern": f"^{PUBLIC_ID_PATTERN}$"},
}
_SCHEMES: Json = {
    "tenantBearer": {"type": "http", "scheme": "bearer", "description": "A tenant's key."},
    "tenantHeader": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "adminBearer": {"type": "http", "scheme": "bearer", "description": "The admin key."},
    "adminHeader": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def document() -> Json:
    paths: Json = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Watermaster",
            "version": version("watermaster"),
            "description": _ABOUT,
        },
        "paths": paths,
        "components": {
            "schemas": openapi_bodies.schemas(),
            "parameters": headers.parameters(),
            "headers": headers.headers(),
            "securitySchemes": _SCHEMES,
        },
    }


class OpenApi:
    def __init__(self) -> None:
        self._body = orjson.dumps(document(), option=orjson.OPT_INDENT_2)

    async def document(self, _: Request) -> Response:
        return Response(self._body, media_type="application/json")


def _operation(operation: Operation) -> Json:
    described: Json = {
        "summary": operation.summary,
        "parameters": _parameters(operation),
        "responses": {str(operation.status): _answer(operation), **_refusals(operation)},
    }
    if operation.key:
        described["security"] = [{f"{operation.key}{kind}": []} for kind in ("Bearer", "Header")]
    if operation.body:
        described["requestBody"] = {
            "required": not operation.body_optional,
            "content": {"application/json": {"schema": {"$ref": REF + operation.body}}},
        }
    return described


def _parameters(operation: Operation) -> list[Json]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": _IN_PATH.get(name, ID_SCHEMA)}
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]
    in_query = [
        {"name": name, "in": "query", "schema": schema, "description": text}
        for name, (schema, text) in operation.query.items()
    ]
    sent = (*headers.COMMON, *operation.headers)
    return in_path + in_query + headers.refer_parameters(sent)


def _answer(operation: Operation) -> Json:
    if operation.text:
        content: Json = {operation.text: {"schema": {"type": "string"}}}
    else:
        schema = {"type": "object", "required": list(operation.members)}
        content = {"application/json": {"schema": schema}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if operation.also:
        content[operation.also] = {"schema": {"type": "string"}}
    generates = "idempotency-key" in operation.headers
    more = {**headers.CARRIED, **headers.REPLAYS, **headers.ROUTES} if generates else {}
    return {
        "description": operation.summary,
        "headers": headers.refer_headers((*headers.ANSWERS, *operation.limits, *more)),
        "content": content,
    }


def _refusals(operation: Operation) -> Json:
    dialect = dialect_of(operation.path)
    rows: dict[int, list[Row]] = {}
    for refusal in operation.codes:
        row = TABLE[refusal]
        rows.setdefault(dialect.status(row), []).append(row)
    own = headers.CARRIED if "idempotency-key" in operation.headers else {}
    carried = (*headers.ANSWERS, *operation.limits, *own, *headers.REFUSALS)
    return {str(status): _refusal(rows[status], dialect, carried) for status in sorted(rows)}


def _refusal(rows: list[Row], dialect: Dialect, carried: Sequence[str]) -> Json:
    codes = sorted({row.code for row in rows})
    return {
        "description": ", ".join(codes),
        "headers": headers.refer_headers(carried),
        "content": {"application/json": {"schema": dialect.error_schema(codes)}},
    }
