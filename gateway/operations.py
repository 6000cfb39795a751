"""What each route is for, takes, answers and refuses: the table behind the OpenAPI document.

A test holds it to the routes that are mounted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway import openapi_headers as headers
from gateway.dialect import MESSAGES_PATH
from gateway.errors import TABLE, Reason
from telemetry.events import Cause

Json = dict[str, Any]
Refusal = Reason | Cause

_KEYED = frozenset({Reason.BAD_KEY, Reason.STORE_UNAVAILABLE})
_TENANTS = _KEYED | {Reason.SCOPE}
_BODY = frozenset(
    {
        Reason.INVALID_JSON,
        Reason.INVALID_HEADER,
        Reason.INVALID_VALUE,
        Reason.UNKNOWN_PARAMETER,
        Reason.BODY_TIMEOUT,
        Reason.BODY_TOO_LARGE,
    }
)
_ELSEWHERE = frozenset(
    {
        Reason.NOT_FOUND,
        Reason.METHOD_NOT_ALLOWED,
        Reason.COMMIT_CONFLICT,
        Reason.ALREADY_EXISTS,
        Reason.KEY_NOT_ACTIVE,
        Reason.RECORD_DAMAGED,
        Reason.SERVERS_SILENT,
    }
)
# Of the engine's seam for constraints alone: nothing that can be asked for over HTTP has one.
UNSERVED = frozenset({Cause.CONSTRAINT})
_GENERATION = frozenset(TABLE) - _ELSEWHERE - UNSERVED
_VALUE = frozenset({Reason.INVALID_VALUE})
_ABSENT = frozenset({Reason.NOT_FOUND})
_SOUGHT = _ABSENT | {Reason.SERVERS_SILENT}


@dataclass(frozen=True, slots=True)
class Operation:
    """`members` are those that every successful JSON answer has; `text` if it is none, and

    `also` what else it may be.

    `body` names a schema of `gateway.openapi_bodies`. `key` is whose key it needs, if any's.
    """

    method: str
    path: str
    summary: str
    members: tuple[str, ...] = ()
    status: int = 200
    body: str | None = None
    body_optional: bool = False
    key: str | None = "tenant"
    refusals: frozenset[Refusal] = _TENANTS
    headers: Mapping[str, tuple[Json, str]] = field(default_factory=dict)
    query: Mapping[str, tuple[Json, str]] = field(default_factory=dict)
    streams: bool = False
    text: str | None = None
    also: str | None = None

    @property
    def limits(self) -> Mapping[str, tuple[Json, str]]:
        """The headers that tell how the tenant's stand."""
        if self.key != "tenant":
            return {}
        return headers.ANTHROPIC_LIMITS if self.path == MESSAGES_PATH else headers.LIMITS

    @property
    def codes(self) -> frozenset[Refusal]:
        return self.refusals | {Reason.INTERNAL}


def _generation(
    path: str, summary: str, body: str, *members: str, anthropic: bool = False
) -> Operation:
    return Operation(
        "POST",
        path,
        summary,
        members,
        body=body,
        refusals=_GENERATION,
        headers={**headers.GENERATION, **(headers.ANTHROPIC if anthropic else {})},
        streams=True,
    )


def _cancel(path: str) -> Operation:
    return Operation(
        "DELETE",
        path,
        "Cancel everything under it, running and yet to come.",
        ("object", "task", "cancelled"),
        refusals=_TENANTS | _VALUE,
    )


def _probe(path: str, summary: str, *members: str, **more: Any) -> Operation:
    refusals = more.pop("refusals", frozenset())
    return Operation("GET", path, summary, members, key=None, refusals=refusals, **more)


def _admin(
    method: str,
    path: str,
    summary: str,
    members: Iterable[str],
    refusals: Iterable[Refusal] = (),
    **more: Any,
) -> Operation:
    all_refusals = _KEYED | set(refusals) | (_BODY if "body" in more else set())
    path = f"/admin{path}"
    return Operation(
        method, path, summary, tuple(members), key="admin", refusals=all_refusals, **more
    )


_TASK = "/v1/tasks/{task}"
_RUN = f"{_TASK}/runs/{{run}}"
_ATTEMPT = f"{_RUN}/attempts/{{attempt}}"
_TENANT, _KEY = "/tenants/{tenant}", "/keys/{key}"
_TENANT_MEMBERS = ("id", "weight", "disabled", "created")
_KEY_MEMBERS = ("public_id", "tenant", "scopes", "models", "expires", "disabled", "revoked")
_READ = frozenset({Reason.NOT_FOUND, Reason.RECORD_DAMAGED})
_ENDED = _READ | {Reason.KEY_NOT_ACTIVE}
_TEXT: Json = {"type": "string"}


def _page(what: str) -> Mapping[str, tuple[Json, str]]:
    most: Json = {"type": "integer", "minimum": 1, "maximum": 100}
    return {
        "limit": (most, f"Most {what} in the answer."),
        "after": (_TEXT, f"Only {what} whose ids come after this one; `next` of the page before."),
    }


_USAGE = {
    "from": (_TEXT, "A date, an RFC 3339 time or Unix seconds; absent: 30 days ago."),
    "to": (_TEXT, "Likewise, not included; absent: now. Hours count if they overlap the time."),
    "key": (_TEXT, "The public id of a key."),
    "model": (_TEXT, "A model."),
    "by": (_TEXT, "Out of key, model, day and hour, with commas: a line for each combination."),
    "format": ({"enum": ["json", "csv"]}, "Absent: as the accept header says, or JSON."),
}

OPERATIONS: tuple[Operation, ...] = (
    _generation(
        "/v1/chat/completions",
        "Continue a conversation; OpenAI's.",
        "ChatRequest",
        *("id", "object", "created", "model", "choices", "usage"),
    ),
    _generation(
        "/v1/completions",
        "Continue a text; OpenAI's.",
        "CompletionRequest",
        *("id", "object", "created", "model", "choices", "usage"),
    ),
    _generation(
        MESSAGES_PATH,
        "Continue a conversation; Anthropic's.",
        "MessagesRequest",
        *("id", "type", "role", "model", "content", "stop_reason", "usage"),
        anthropic=True,
    ),
    Operation("GET", "/v1/models", "List the models that the key may use.", ("object", "data")),
    Operation(
        "GET",
        "/v1/models/{model}",
        "Show one model.",
        ("id", "object", "created", "owned_by", "context_length"),
        refusals=_TENANTS | {Reason.MODEL_NOT_FOUND},
    ),
    Operation(
        "GET",
        "/v1/backpressure",
        "Tell how one's own tenant stands with each model; as a stream, whenever that changes.",
        ("object", "tenant", "draining", "limits", "models"),
        refusals=_TENANTS | {Reason.INVALID_HEADER, Reason.TENANT_BUSY, Reason.SERVER_BUSY},
        headers={name: headers.GENERATION[name] for name in ("x-task-id", "x-run-id", "baggage")},
        streams=True,
    ),
    Operation(
        "GET",
        _TASK,
        "Tell how one's own task stands, on all servers of the store.",
        (
            *("object", "task", "complete", "missing_servers", "committed", "states", "causes"),
            *("usage", "cancellation_lag_tokens", "sequences"),
        ),
        refusals=_TENANTS | _VALUE | _SOUGHT,
    ),
    _cancel(_TASK),
    _cancel(_RUN),
    _cancel(_ATTEMPT),
    _cancel(f"{_ATTEMPT}/requests/{{request}}"),
    Operation(
        "POST",
        f"{_TASK}/commit",
        "Declare the attempt that has won, and cancel the others.",
        ("object", "task", "attempt", "committed"),
        body="CommitRequest",
        refusals=_TENANTS | _BODY | {Reason.COMMIT_CONFLICT},
    ),
    Operation(
        "GET",
        "/v1/requests/{request}/explain",
        "Tell where the time of one's own call went, whichever server of the store answered it.",
        ("object", "request", "complete", "missing_servers", "sequences"),
        refusals=_TENANTS | _VALUE | _SOUGHT,
    ),
    Operation(
        "GET",
        "/v1/usage",
        "Tell what one's own tenant used, by key, model, day or hour, as JSON or CSV.",
        ("object", "tenant", "from", "to", "by", "data"),
        refusals=_TENANTS | _VALUE | {Reason.UNKNOWN_PARAMETER},
        query=_USAGE,
        also="text/csv",
    ),
    _admin(
        "POST",
        "/tenants",
        "Add a tenant.",
        _TENANT_MEMBERS,
        {Reason.ALREADY_EXISTS},
        body="NewTenant",
        status=201,
    ),
    _admin(
        "GET",
        "/tenants",
        "List tenants, a page at a time.",
        ("object", "data", "damaged", "next"),
        _VALUE,
        query=_page("tenants"),
    ),
    _admin("GET", _TENANT, "Show a tenant.", _TENANT_MEMBERS, _READ),
    _admin(
        "PATCH",
        _TENANT,
        "Change the settings that are named; null takes one back.",
        _TENANT_MEMBERS,
        _READ,
        body="TenantSettings",
        body_optional=True,
    ),
    _admin(
        "POST",
        f"{_TENANT}/keys",
        "Issue a key; `key` is told this once.",
        ("key", *_KEY_MEMBERS),
        _ABSENT,
        body="NewKey",
        body_optional=True,
        status=201,
    ),
    _admin(
        "GET",
        f"{_TENANT}/keys",
        "List the tenant's keys, a page at a time.",
        ("object", "data", "damaged", "next"),
        _ABSENT | _VALUE,
        query=_page("keys"),
    ),
    _admin("GET", _KEY, "Show a key.", _KEY_MEMBERS, _READ),
    _admin(
        "PATCH",
        _KEY,
        "Change the rights of a key, disable or enable it.",
        _KEY_MEMBERS,
        _ENDED,
        body="KeyChanges",
        body_optional=True,
    ),
    _admin(
        "POST",
        f"{_KEY}/rotate",
        "Issue a key with the same rights; the old one works a while longer.",
        ("key", *_KEY_MEMBERS),
        _ENDED,
        body="Rotation",
        body_optional=True,
        status=201,
    ),
    _admin("POST", f"{_KEY}/revoke", "End a key for good.", _KEY_MEMBERS, _ABSENT),
    _admin(
        "GET",
        "/audit",
        "Tell what was changed of tenants and keys, when, how and by whom; the newest first.",
        ("object", "data", "next"),
        _VALUE,
        query={
            "limit": _page("changes")["limit"],
            "before": (_TEXT, "Only changes before that with this id; `next` of the page before."),
        },
    ),
    _admin(
        "GET",
        "/usage",
        "Tell what all tenants used, by tenant, key, model, day or hour, as JSON or CSV.",
        ("object", "tenant", "from", "to", "by", "data"),
        _VALUE | {Reason.UNKNOWN_PARAMETER, Reason.RECORD_DAMAGED},
        query={
            **_USAGE,
            "tenant": (_TEXT, "A tenant."),
            "by": (_TEXT, "Out of tenant, key, model, day and hour; absent: tenant,key,model."),
        },
        also="text/csv",
    ),
    _probe("/health", "Whether the process is worth keeping; 503 if not.", "status", "models"),
    _probe(
        "/ready",
        "Whether new work is taken, how the store is, and where usage is kept.",
        *("status", "models", "store", "usage"),
        refusals=frozenset({Cause.DRAINING, Reason.ENGINE_NOT_READY}),
    ),
    _probe("/metrics", "Prometheus' page.", text="text/plain"),
    _probe("/openapi.json", "This document.", *("openapi", "info", "paths", "components")),
)
