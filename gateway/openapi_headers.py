"""The headers that callers may send and that answers carry, for the OpenAPI document."""

from collections.abc import Iterable
from typing import Any

from gateway import routed
from gateway.baggage import PASSED_OVER
from gateway.deadlines import FURTHEST_MS
from gateway.lineage import ID_SCHEMA
from gateway.returns import LONGEST_KEY

Json = dict[str, Any]

_TIME: Json = {"type": "integer", "minimum": 1, "maximum": FURTHEST_MS}
_TEXT: Json = {"type": "string"}
_KEY: Json = {"type": "string", "pattern": f"^[ -~]{{1,{LONGEST_KEY}}}$"}

# Of every operation.
COMMON: dict[str, tuple[Json, str]] = {
    # Where it names a call to a model it must be an id; elsewhere another is made up.
    "x-request-id": (_TEXT, "Name of the call, echoed; one is made up if it is left out."),
}
# Of calls to a model.
GENERATION: dict[str, tuple[Json, str]] = {
    "x-task-id": (ID_SCHEMA, "The task that the call belongs to; may be cancelled as a whole."),
    "x-run-id": (ID_SCHEMA, "The run of the task."),
    "x-attempt-id": (ID_SCHEMA, "The attempt of the run; one of several may be committed."),
    "x-deadline": (_TEXT, "The instant after which the answer is worth nothing: RFC 3339 or ms."),
    "x-timeout-ms": (_TIME, "The time that is left for the answer."),
    "x-first-token-deadline": (_TEXT, "The instant by which the answer must have begun."),
    "x-first-token-timeout-ms": (_TIME, "The time that is left until the answer must have begun."),
    "idempotency-key": (_KEY, "The call is computed once under it, and its answer replayed."),
    "x-stainless-retry-count": (_TEXT, "How often stock clients have sent the call before."),
    "traceparent": (_TEXT, "W3C's: the caller's span, of which the call becomes a child."),
    "tracestate": (_TEXT, "W3C's."),
    "baggage": (_TEXT, "W3C's: watermaster.task, .run and .attempt stand for the x-...-id."),
}
ANTHROPIC: dict[str, tuple[Json, str]] = {
    "anthropic-version": (_TEXT, "Accepted, and changes nothing."),
    "anthropic-beta": (_TEXT, "Accepted, and changes nothing."),
}

ANSWERS: dict[str, tuple[Json, str]] = {
    "x-request-id": (_TEXT, "Name of the call, also in traces and in explanations."),
    "x-server-time": ({"type": "integer"}, "The server's clock, in Unix milliseconds."),
}
# Of calls to a model that bring such members.
CARRIED: dict[str, tuple[Json, str]] = {
    PASSED_OVER: (
        _TEXT,
        "Members of the call's baggage that are no ids, and were left out: watermaster.task …",
    ),
}
# Of every answer to the key of a tenant that has such limits: the scarcest of each kind.
LIMITS: dict[str, tuple[Json, str]] = {
    "ratelimit-policy": (_TEXT, "The IETF's: every limit with its quota, unit and window."),
    "ratelimit": (_TEXT, "The IETF's: what remains of each, and the seconds until it is whole."),
    **{
        f"x-ratelimit-{what}-{kind}": (schema, f"OpenAI's: {text} {kind}.")
        for kind in ("requests", "tokens")
        for what, schema, text in (
            ("limit", {"type": "integer"}, "the limit of"),
            ("remaining", {"type": "integer"}, "what remains of"),
            ("reset", _TEXT, "how long until all is there again, such as 1m0s, of"),
        )
    },
}
ANTHROPIC_LIMITS: dict[str, tuple[Json, str]] = {
    **{name: LIMITS[name] for name in ("ratelimit-policy", "ratelimit")},
    **{
        f"anthropic-ratelimit-{kind}-{what}": (schema, f"Anthropic's: {text} {kind}.")
        for kind in ("requests", "tokens", "input-tokens", "output-tokens")
        for what, schema, text in (
            ("limit", {"type": "integer"}, "the limit of"),
            ("remaining", {"type": "integer"}, "what remains of"),
            ("reset", _TEXT, "the instant at which all is there again, of"),
        )
    },
}
REPLAYS: dict[str, tuple[Json, str]] = {
    "idempotent-replayed": (
        {"const": "true"},
        "The answer was computed for an earlier call under the same idempotency key.",
    ),
}
ROUTES: dict[str, tuple[Json, str]] = {
    routed.MODEL: (_TEXT, "The model that answered, where that is the preferred one's fallback."),
    routed.REASON: ({"const": routed.ONLY_REASON}, "Why it did."),
}
REFUSALS: dict[str, tuple[Json, str]] = {
    "retry-after": ({"type": "integer"}, "Seconds after which to try again."),
    "retry-after-ms": ({"type": "integer"}, "The same in milliseconds."),
    "x-should-retry": ({"enum": ["false"]}, "There where trying again is pointless."),
    "www-authenticate": ({"const": "Bearer"}, "With 401."),
}


def parameters() -> Json:
    """All headers of requests, by name, for others to refer to."""
    sent = {**COMMON, **GENERATION, **ANTHROPIC}
    return {
        name: {"name": name, "in": "header", "schema": schema, "description": text}
        for name, (schema, text) in sent.items()
    }


def all_of_answers() -> dict[str, tuple[Json, str]]:
    return {**ANSWERS, **CARRIED, **LIMITS, **ANTHROPIC_LIMITS, **REPLAYS, **ROUTES, **REFUSALS}


def headers() -> Json:
    """All headers of answers, by name, for others to refer to."""
    carried = all_of_answers()
    return {name: {"schema": schema, "description": t} for name, (schema, t) in carried.items()}


def refer_parameters(names: Iterable[str]) -> list[Json]:
    return [{"$ref": f"#/components/parameters/{name}"} for name in names]


def refer_headers(names: Iterable[str]) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
