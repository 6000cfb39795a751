"""Examples of refusals for `docs/api.md`, by their code, run by a test like those of the routes."""

from collections.abc import Mapping

from gateway.api_examples import Example

_KEY = '-H "authorization: Bearer $KEY"'
_ADMIN = '-H "authorization: Bearer $ADMIN"'
_HI = '"model": "auto", "messages": [{"role": "user", "content": "hi"}]'
_INVALID = "invalid_request_error"


def _answer(code: str, kind: str, param: str | None = None, more: str = "") -> str:
    named = "null" if param is None else f'"{param}"'
    return (
        f'{{"error": {{"message": "…", "type": "{kind}", "param": {named}, "code": "{code}"'
        f"{more}}}}}"
    )


def _chat(body: str, status: int, answer: str, headers: str = "", while_: str = "") -> Example:
    more = f" {headers}" if headers else ""
    call = f"curl -s $URL/v1/chat/completions {_KEY}{more} \\\n  -d '{body}'"
    return Example(call, answer, status, while_)


def _later(code: str, kind: str, status: int, while_: str, more: str = "") -> Example:
    facts = f'{more}, "retry_after_ms": "…"'
    return _chat("{" + _HI + "}", status, _answer(code, kind, None, facts), while_=while_)


EXAMPLES: Mapping[str, Example] = {
    "invalid_json": _chat("{", 400, _answer("invalid_json", _INVALID)),
    "invalid_value": _chat("{" + _HI + ', "n": 0}', 400, _answer("invalid_value", _INVALID, "n")),
    "invalid_header": _chat(
        "{" + _HI + "}",
        400,
        _answer("invalid_header", _INVALID, "x-timeout-ms"),
        "-H 'x-timeout-ms: soon'",
    ),
    "unknown_parameter": _chat(
        "{" + _HI + ', "colour": 1}', 400, _answer("unknown_parameter", _INVALID, "colour")
    ),
    "unsupported_parameter": _chat(
        "{" + _HI + ', "tools": [1]}', 400, _answer("unsupported_parameter", _INVALID, "tools")
    ),
    "context_length_exceeded": Example(
        f"curl -s $URL/v1/completions {_KEY} \\\n"
        """  -d '{"model": "auto", "prompt": [1, 2, 3], "max_tokens": '$((CONTEXT - 1))'}'""",
        _answer(
            "context_length_exceeded",
            _INVALID,
            "max_tokens",
            ', "context_tokens": "…", "prompt_tokens": 3',
        ),
        400,
    ),
    "invalid_api_key": Example(
        "curl -s $URL/v1/models -H 'authorization: Bearer wm-0123456789ab-x'",
        _answer("invalid_api_key", "authentication_error", None, ', "reason": "malformed"'),
        401,
    ),
    "insufficient_scope": Example(
        'curl -s -X DELETE $URL/v1/tasks/old -H "authorization: Bearer $READER"',
        _answer("insufficient_scope", "permission_error"),
        403,
    ),
    "model_not_found": _chat(
        '{"model": "none", "messages": [{"role": "user", "content": "hi"}]}',
        404,
        _answer("model_not_found", "not_found_error", "model"),
    ),
    "not_found": Example("curl -s $URL/v1/nothing", _answer("not_found", "not_found_error"), 404),
    "method_not_allowed": Example(
        f"curl -s -X DELETE $URL/v1/models {_KEY}", _answer("method_not_allowed", _INVALID), 405
    ),
    "idempotency_key_reused": _chat(
        "{" + _HI + "}",
        422,
        _answer("idempotency_key_reused", _INVALID, "idempotency-key"),
        "-H 'idempotency-key: k1'",
    ),
    "already_exists": Example(
        f'curl -s $URL/admin/tenants {_ADMIN} -d \'{{"id": "acme"}}\'',
        _answer("already_exists", "conflict_error"),
        409,
    ),
    "commit_conflict": Example(
        f'curl -s $URL/v1/tasks/tour/commit {_KEY} -d \'{{"attempt": "second"}}\'',
        _answer(
            "commit_conflict",
            "conflict_error",
            "attempt",
            ', "committed": {"attempt": "first", "run": null}',
        ),
        409,
    ),
    "key_not_active": Example(
        f"curl -s -X POST $URL/admin/keys/$ID/rotate {_ADMIN}",
        _answer("key_not_active", "conflict_error"),
        409,
    ),
    "record_damaged": Example(
        f"curl -s $URL/admin/tenants/acme {_ADMIN}",
        _answer("record_damaged", "conflict_error"),
        409,
        "somebody has damaged the record of acme in the store",
    ),
    "cancelled": _chat(
        "{" + _HI + "}",
        499,
        _answer("cancelled", "cancelled", None, ', "cause": "task_cancelled"'),
        "-H 'x-task-id: old'",
    ),
    "lost_race": _chat(
        "{" + _HI + "}",
        499,
        _answer("lost_race", "cancelled", None, ', "cause": "race_over"'),
        "-H 'x-task-id: tour' -H 'x-attempt-id: second'",
    ),
    "deadline_exceeded": _chat(
        "{" + _HI + "}",
        504,
        _answer(
            "deadline_exceeded",
            "timeout_error",
            None,
            ', "cause": "deadline_exceeded", "late_by_ms": "…"',
        ),
        "-H 'x-deadline: 2026-01-01T00:00:00Z'",
    ),
    "rate_limit_exceeded": _later(
        "rate_limit_exceeded",
        "rate_limit_error",
        429,
        "the tenant has as many calls open as it may",
        ', "limit_requests": "…"',
    ),
    "saturated": _later(
        "saturated", "overloaded_error", 503, "the server has as many calls open as it may"
    ),
    "draining": _later("draining", "overloaded_error", 503, "the server shuts down"),
    "engine_not_ready": Example(
        "curl -s $URL/ready",
        _answer(
            "engine_not_ready",
            "overloaded_error",
            None,
            ', "models": {"…": "…"}, "store": {"state": "up"}, "usage": {"…": "…"}, '
            '"retry_after_ms": "…"',
        ),
        503,
        "the model is loaded",
    ),
    "engine_restarting": _later(
        "engine_restarting",
        "overloaded_error",
        503,
        "the engine fails",
        ', "cause": "engine_failed", "usage": {"…": "…"}',
    ),
    "store_unavailable": Example(
        f"curl -s $URL/admin/tenants {_ADMIN}",
        _answer("store_unavailable", "overloaded_error", None, ', "retry_after_ms": "…"'),
        503,
        "the store is away",
    ),
}

# What takes more than one call to bring about, and the test that does.
ELSEWHERE: Mapping[str, str] = {
    "body_timeout": "tests/gateway/test_refusals.py::test_a_body_that_comes_too_slowly_is_408",
    "body_too_large": (
        "tests/gateway/test_refusals.py::test_large_bodies_are_413_whether_declared_or_not"
    ),
    "insufficient_quota": (
        "tests/gateway/test_limits.py::test_a_budget_in_tokens_is_a_quota_and_stock_clients_give_up"
    ),
    "idempotent_call_running": (
        "tests/gateway/test_idempotency.py::test_a_call_that_runs_elsewhere_is_409_until_it_is_done"
    ),
    "idempotent_answer_not_kept": (
        "tests/gateway/test_idempotency.py"
        "::test_answers_too_large_to_keep_are_refused_and_not_computed_again"
    ),
    "queue_full": "tests/gateway/test_refusals.py::test_a_full_queue_is_429",
    "deadline_infeasible": (
        "tests/gateway/test_routing.py::test_whoever_did_not_choose_it_is_refused"
    ),
    "disconnected": "tests/gateway/test_hangups.py::test_hanging_up_during_decode",
    "slow_reader": (
        "tests/gateway/test_streams.py::test_a_reader_that_stops_is_cut_off_and_slows_nobody"
    ),
    "internal_error": (
        "tests/gateway/test_refusals.py::test_an_unexpected_failure_is_500_without_details"
    ),
    "servers_silent": (
        "tests/gateway/test_shared_tasks.py::test_what_nobody_could_be_asked_about_is_503_and_not_404"
    ),
    "usage_unrecorded": (
        "tests/gateway/test_usage.py::test_while_usage_cannot_be_written_down_no_new_work_is_taken"
    ),
    "numerical_error": "tests/kernel/test_cases.py::test_a_sequence_with_nan_logits_fails_alone",
    "shutting_down": (
        "tests/cli/test_server.py::test_what_outlives_the_grace_period_ends_with_an_error"
    ),
}
