"""The examples of `docs/api.md`, in the order in which they are run: a test runs them all.

In an answer … stands for anything, and for further members where it is a member's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_KEY = '-H "authorization: Bearer $KEY"'
_ADMIN = '-H "authorization: Bearer $ADMIN"'
_HI = '"model": "auto", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4'
_USAGE = """{
    "prompt_tokens": "…", "completion_tokens": 4, "total_tokens": "…",
    "prompt_tokens_details": {"cached_tokens": "…"}
  }"""
_TENANT = '{"id": "acme", "weight": %s, "max_max_tokens": %s, "disabled": false, "…": "…"}'
_ISSUED = """{
  "public_id": "…", "tenant": "acme", "scopes": ["read"], "models": [],
  "expires": null, "disabled": %s, "revoked": %s, "created": "…"%s
}"""
_STREAM = """data: {"id":"…","object":"chat.completion.chunk",…"delta":{"role":"assistant",…}
…
data: {…"finish_reason":"length"}]}

data: [DONE]"""


@dataclass(frozen=True, slots=True)
class Example:
    """A call for a shell, and its answer. `while_` names a state of the server that it needs."""

    call: str
    answer: str
    status: int = 200
    while_: str = ""


def _get(path: str, key: str, answer: str) -> Example:
    return Example(f"curl -s $URL{path} {key}".rstrip(), answer)


def _post(path: str, key: str, body: str, answer: str, status: int = 200) -> Example:
    return Example(f"curl -s $URL{path} {key} \\\n  -d '{body}'", answer, status)


# Every header that a call to a model may have.
_HEADERS = """ \\
  -H 'x-task-id: trip' -H 'x-run-id: r1' -H 'x-attempt-id: a1' -H 'x-request-id: q1' \\
  -H "x-deadline: $SOON" -H 'x-timeout-ms: 30000' \\
  -H "x-first-token-deadline: $SOON" -H 'x-first-token-timeout-ms: 20000' \\
  -H 'idempotency-key: k1' -H 'x-stainless-retry-count: 1' \\
  -H 'traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' \\
  -H 'tracestate: vendor=1' -H 'baggage: watermaster.task=trip,watermaster.run=r1'"""


OPERATIONS: Mapping[str, tuple[Example, ...]] = {
    "POST /v1/chat/completions": (
        _post(
            "/v1/chat/completions",
            f"{_KEY} \\\n  -H 'x-task-id: tour' -H 'x-attempt-id: first' -H 'x-request-id: hello'"
            " \\\n  -H 'x-timeout-ms: 60000'",
            "{" + _HI + "}",
            """{
  "id": "…", "object": "chat.completion", "created": "…", "model": "…",
  "choices": [{
    "index": 0, "message": {"role": "assistant", "content": "…", "refusal": null},
    "logprobs": null, "finish_reason": "length"
  }],
  "usage": """
            + _USAGE
            + "\n}",
        ),
        _post("/v1/chat/completions", f"-N {_KEY}", "{" + _HI + ', "stream": true}', _STREAM),
    ),
    "POST /v1/completions": (
        _post(
            "/v1/completions",
            _KEY,
            '{"model": "auto", "prompt": "Water", "max_tokens": 4}',
            """{
  "id": "…", "object": "text_completion", "created": "…", "model": "…",
  "choices": [{"index": 0, "text": "…", "logprobs": null, "finish_reason": "length"}],
  "usage": """
            + _USAGE
            + "\n}",
        ),
        _post(
            "/v1/completions",
            f"{_KEY}{_HEADERS}",
            '{"model": "auto", "prompt": "Water", "max_tokens": 4}',
            '{"object": "text_completion", "…": "…"}',
        ),
        _post(  # no id: x-watermaster-ignored-baggage
            "/v1/completions",
            f"{_KEY} -H 'baggage: watermaster.task=no/id'",
            '{"model": "auto", "prompt": "Water", "max_tokens": 4}',
            '{"object": "text_completion", "…": "…"}',
        ),
        _post(  # again: it is not computed again
            "/v1/completions",
            f"{_KEY} -H 'idempotency-key: k1'",
            '{"model": "auto", "prompt": "Water", "max_tokens": 4}',
            '{"object": "text_completion", "…": "…"}',
        ),
    ),
    "POST /v1/messages": (
        _post(
            "/v1/messages",
            "-H \"x-api-key: $KEY\" -H 'anthropic-version: 2023-06-01' -H 'anthropic-beta: none'",
            "{" + _HI + "}",
            """{
  "id": "…", "type": "message", "role": "assistant", "model": "…",
  "content": [{"type": "text", "text": "…"}],
  "stop_reason": "max_tokens", "stop_sequence": null,
  "usage": {
    "input_tokens": "…", "cache_creation_input_tokens": 0, "cache_read_input_tokens": "…",
    "output_tokens": 4
  }
}""",
        ),
    ),
    "GET /v1/models": (
        _get("/v1/models", _KEY, '{"object": "list", "data": [{"id": "…", "…": "…"}]}'),
    ),
    "GET /v1/models/{model}": (
        _get(
            "/v1/models/$MODEL",
            _KEY,
            """{
  "id": "…", "object": "model", "created": "…", "owned_by": "watermaster", "context_length": "…"
}""",
        ),
    ),
    "GET /v1/backpressure": (
        _get(
            "/v1/backpressure",
            _KEY,
            """{
  "object": "backpressure", "tenant": "…", "draining": false, "limits": ["…"],
  "models": [{
    "model": "…", "state": "ready", "queued_requests": 0, "estimated_start_ms": "…",
    "feasible_parallelism": "…", "retry_after_ms": null, "…": "…"
  }]
}""",
        ),
    ),
    "GET /v1/usage": (
        _get(
            "/v1/usage?by=key",
            _KEY,
            """{
  "object": "usage", "tenant": "…", "from": "…", "to": "…", "by": ["key"],
  "data": [{
    "key": "…", "requests": "…", "prompt_tokens": "…", "cached_tokens": "…", "output_tokens": "…",
    "aborted_tokens": "…", "recomputed_tokens": "…", "rework_tokens": "…", "device_seconds": "…",
    "money": "…"
  }]
}""",
        ),
        _get(
            "/v1/usage?by=model",
            f"{_KEY} -H 'accept: text/csv'",
            "model,requests,prompt_tokens,cached_tokens,output_tokens,…,device_seconds,money…",
        ),
    ),
    "GET /v1/tasks/{task}": (
        _get(
            "/v1/tasks/tour",
            _KEY,
            """{
  "object": "task", "task": "tour", "complete": true, "missing_servers": 0, "committed": null,
  "states": {"queued": 0, "prefill": 0, "decode": 0, "ended": 1, "refused": 0},
  "causes": {"length": 1}, "usage": {"…": "…"}, "cancellation_lag_tokens": 0,
  "sequences": [{
    "sequence": "…", "run": "hello", "attempt": "first", "request": "hello",
    "state": "ended", "cause": "length", "ended_in": "decode", "…": "…"
  }]
}""",
        ),
    ),
    "POST /v1/tasks/{task}/commit": (
        _post(
            "/v1/tasks/tour/commit",
            _KEY,
            '{"attempt": "first"}',
            '{"object": "commitment", "task": "tour", "attempt": "first", "committed": true}',
        ),
    ),
    "DELETE /v1/tasks/{task}": (
        Example(
            f"curl -s -X DELETE $URL/v1/tasks/old {_KEY}",
            '{"object": "cancellation", "task": "old", "cancelled": true}',
        ),
    ),
    "DELETE /v1/tasks/{task}/runs/{run}": (
        Example(
            f"curl -s -X DELETE $URL/v1/tasks/old/runs/r1 {_KEY}",
            '{"object": "cancellation", "task": "old", "run": "r1", "cancelled": true}',
        ),
    ),
    "DELETE /v1/tasks/{task}/runs/{run}/attempts/{attempt}": (
        Example(
            f"curl -s -X DELETE $URL/v1/tasks/old/runs/r1/attempts/a1 {_KEY}",
            '{"object": "cancellation", "task": "old", "run": "r1", "attempt": "a1", "…": "…"}',
        ),
    ),
    "DELETE /v1/tasks/{task}/runs/{run}/attempts/{attempt}/requests/{request}": (
        Example(
            f"curl -s -X DELETE $URL/v1/tasks/old/runs/r1/attempts/a1/requests/q1 {_KEY}",
            '{"object": "cancellation", "attempt": "a1", "request": "q1", "…": "…"}',
        ),
    ),
    "GET /v1/requests/{request}/explain": (
        _get(
            "/v1/requests/hello/explain",
            _KEY,
            """{
  "object": "explanation", "request": "hello", "complete": true, "missing_servers": 0,
  "sequences": [{
    "sequence": "…", "model": "…", "task": "tour", "finished": true, "cause": "length",
    "latency_ns": "…",
    "parts": [{"part": "gateway_wait", "ns": "…"}, "…"], "preemptions": 0, "…": "…"
  }]
}""",
        ),
    ),
    "POST /admin/tenants": (
        _post(
            "/admin/tenants",
            _ADMIN,
            '{"id": "acme", "weight": 2, "max_max_tokens": 64}',
            _TENANT % ("2.0", "64"),
            201,
        ),
    ),
    "GET /admin/tenants": (
        _get(
            "/admin/tenants?after=a\\&limit=1",
            _ADMIN,
            '{"object": "list", "data": ['
            + _TENANT % ("2.0", "64")
            + '], "damaged": [], "next": "acme"}',
        ),
    ),
    "GET /admin/tenants/{tenant}": (_get("/admin/tenants/acme", _ADMIN, _TENANT % ("2.0", "64")),),
    "PATCH /admin/tenants/{tenant}": (
        _post(
            "/admin/tenants/acme",
            f"-X PATCH {_ADMIN}",
            '{"weight": 3, "max_max_tokens": null}',
            _TENANT % ("3.0", "null"),
        ),
    ),
    "POST /admin/tenants/{tenant}/keys": (
        _post(
            "/admin/tenants/acme/keys",
            _ADMIN,
            '{"scopes": ["read"]}',
            _ISSUED % ("false", "false", ', "key": "wm-…"'),
            201,
        ),
    ),
    "GET /admin/tenants/{tenant}/keys": (
        _get(
            "/admin/tenants/acme/keys",
            _ADMIN,
            '{"object": "list", "data": [{"public_id": "…", "tenant": "acme", "…": "…"}],'
            ' "damaged": [], "next": null}',
        ),
    ),
    "GET /admin/keys/{key}": (_get("/admin/keys/$ID", _ADMIN, _ISSUED % ("false", "false", "")),),
    "PATCH /admin/keys/{key}": (
        _post(
            "/admin/keys/$ID",
            f"-X PATCH {_ADMIN}",
            '{"disabled": true}',
            _ISSUED % ("true", "false", ""),
        ),
        _post(
            "/admin/keys/$ID",
            f"-X PATCH {_ADMIN}",
            '{"disabled": false}',
            _ISSUED % ("false", "false", ""),
        ),
    ),
    "POST /admin/keys/{key}/rotate": (
        _post(
            "/admin/keys/$ID/rotate",
            _ADMIN,
            '{"overlap": 600}',
            _ISSUED % ("false", "false", ', "key": "wm-…"'),
            201,
        ),
    ),
    "POST /admin/keys/{key}/revoke": (
        Example(
            f"curl -s -X POST $URL/admin/keys/$ID/revoke {_ADMIN}",
            '{"public_id": "…", "tenant": "acme", "revoked": true, "…": "…"}',
        ),
    ),
    "GET /admin/audit": (
        _get(
            "/admin/audit?limit=1",
            _ADMIN,
            """{
  "object": "list", "next": "…", "data": [{
    "id": "…", "at": "…", "by": "admin key …", "did": "key revoked", "to": "…",
    "how": {"tenant": "acme"}
  }]
}""",
        ),
    ),
    "GET /admin/usage": (
        _get(
            "/admin/usage?by=tenant",
            _ADMIN,
            """{
  "object": "usage", "tenant": null, "from": "…", "to": "…", "by": ["tenant"],
  "data": [{"tenant": "…", "requests": "…", "output_tokens": "…", "money": "…", "…": "…"}]
}""",
        ),
        _get(
            "/admin/usage?by=day\\&tenant=acme\\&format=csv",
            _ADMIN,
            "day,requests,prompt_tokens,cached_tokens,output_tokens,…,device_seconds,money",
        ),
    ),
    "GET /health": (_get("/health", "", '{"status": "ok", "models": {"…": "…"}}'),),
    "GET /ready": (
        _get(
            "/ready",
            "",
            """{
  "status": "ready", "models": {"…": "…"}, "store": {"state": "up"},
  "usage": {"state": "stored", "pending_bytes": "…", "lag_seconds": "…"}
}""",
        ),
    ),
    "GET /metrics": (_get("/metrics", "", "…watermaster_store_up 1.0…"),),
    "GET /openapi.json": (
        _get("/openapi.json", "", '{"openapi": "3.1.0", "info": {"…": "…"}, "…": "…"}'),
    ),
}
