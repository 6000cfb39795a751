"""The refusal table: complete, and right on the wire."""

import pytest

from engine.core.outputs import Finished
from gateway.dialect import ANTHROPIC, OPENAI, Rendered, render
from gateway.errors import TABLE, ApiError, Reason, Retry
from gateway.outcomes import FINISH_REASONS, from_finished
from policies.admission import Forecast
from telemetry.events import Cause
from telemetry.units import SECOND


def rendered(error: ApiError) -> Rendered:
    return render(error, OPENAI, "req-1")


def headers_of(error: ApiError) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in rendered(error).headers}


def test_every_cause_is_either_a_completion_or_has_a_row():
    assert set(FINISH_REASONS) | set(TABLE) == set(Cause) | set(Reason)
    assert not set(FINISH_REASONS) & set(TABLE)
    assert set(FINISH_REASONS.values()) == {"stop", "length"}


def test_every_429_and_503_says_when_to_retry():
    waiting = {reason for reason, row in TABLE.items() if row.status in {429, 503}}
    waiting -= {
        Cause.DEADLINE_INFEASIBLE,  # may never become feasible
        Cause.RELEGATED,
        Reason.OVER_LIMIT,  # never fits
        Reason.QUOTA,  # not for the same request; it brings a time of its own
    }
    waiting.add(Reason.CALL_RUNNING)  # a 409 that ends by itself
    assert waiting == {reason for reason, row in TABLE.items() if row.retry is Retry.LATER}
    for reason in waiting:
        headers = headers_of(ApiError(reason))
        seconds, milliseconds = int(headers["retry-after"]), int(headers["retry-after-ms"])
        assert 1 <= seconds <= 60
        assert (seconds - 1) * 1000 < milliseconds <= seconds * 1000
        assert "x-should-retry" not in headers


@pytest.mark.parametrize(
    "cause",
    [
        Cause.DEADLINE,
        Cause.FIRST_TOKEN_DEADLINE,
        Cause.CANCELLED,
        Cause.TASK_CANCELLED,
        Cause.LOST_RACE,
        Cause.RACE_OVER,
        Reason.COMMIT_CONFLICT,
        Reason.OVER_LIMIT,
        Reason.QUOTA,
    ],
)
def test_hopeless_work_is_not_resubmitted(cause):
    assert headers_of(ApiError(cause)) == {"x-should-retry": "false"}


def test_bad_input_says_nothing_about_retries():
    assert headers_of(ApiError(Reason.INVALID_VALUE)) == {}


@pytest.mark.parametrize(
    ("estimate", "least", "most"),
    [(1, 1, 2), (2 * SECOND, 2000, 2500), (59 * SECOND, 59000, 60000)],
)
def test_a_wait_is_the_estimate_plus_up_to_a_quarter(estimate, least, most):
    waits = set()
    for _ in range(50):
        error = ApiError(Cause.QUEUE_FULL, retry_after=estimate)
        spelled = rendered(error)
        wait = int(dict(spelled.headers)[b"retry-after-ms"])
        assert spelled.body["error"]["retry_after_ms"] == wait
        waits.add(wait)
    assert least <= min(waits)
    assert max(waits) <= most
    assert len(waits) > 10 or most - least < 10


def test_a_promised_wait_is_told_as_it_is():
    error = ApiError(Cause.QUEUE_FULL, retry_after=40 * SECOND, promised=True)
    assert headers_of(error)["retry-after-ms"] == "40000"


@pytest.mark.parametrize(("wait", "said"), [(None, None), (2 * SECOND, "2000")])
def test_an_infeasible_deadline_says_what_was_predicted_and_when_to_ask_afresh(wait, said):
    forecast = Forecast(start=2.0, first_token=2.5, finish=9.0, token=0.1)
    finished = Finished(
        Cause.DEADLINE_INFEASIBLE, 10, 0, 0, retry_after=wait, promised=True, forecast=forecast
    )
    error = from_finished(finished, {})
    headers = headers_of(error)
    assert headers["x-should-retry"] == "false"
    assert headers.get("retry-after-ms") == said
    body = rendered(error).body["error"]
    assert (body["code"], body["type"]) == ("deadline_infeasible", "rate_limit_error")
    assert (body["predicted_start_ms"], body["predicted_finish_ms"]) == (2000, 9000)


def test_a_wait_over_a_minute_is_told_but_not_retried():
    headers = headers_of(ApiError(Cause.QUEUE_FULL, retry_after=100 * SECOND))
    assert 100 <= int(headers["retry-after"]) <= 125
    assert headers["x-should-retry"] == "false"


def test_body_has_openais_shape_and_the_facts():
    error = ApiError(Reason.BODY_TOO_LARGE, param="body", facts={"limit": 7}, closes=True)
    spelled = rendered(error)
    assert spelled.status == 413
    assert (b"connection", b"close") in spelled.headers
    assert spelled.body == {
        "error": {
            "message": "The request body is too large.",
            "type": "invalid_request_error",
            "param": "body",
            "code": "body_too_large",
            "limit": 7,
        }
    }


@pytest.mark.parametrize("reason", sorted(TABLE))
def test_anthropics_callers_get_its_statuses_and_types_and_the_same_headers(reason):
    kinds = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        405: "invalid_request_error",
        408: "invalid_request_error",
        409: "conflict_error",
        413: "request_too_large",
        422: "invalid_request_error",
        429: "rate_limit_error",
        499: "invalid_request_error",
        500: "api_error",
        504: "timeout_error",
        529: "overloaded_error",
    }
    error = ApiError(reason, retry_after=1, promised=True)  # promised waits are not spread
    theirs, ours = render(error, ANTHROPIC, "req-1"), rendered(error)
    assert theirs.status == (529 if ours.status == 503 else ours.status)
    assert theirs.headers == ours.headers
    said = {**ours.body["error"], "type": kinds[theirs.status]}
    assert theirs.body == {"type": "error", "error": said, "request_id": "req-1"}


def test_a_refusal_of_the_engine_keeps_cause_detail_and_estimate():
    finished = Finished(
        Cause.QUEUE_FULL, 10, 0, 0, detail="cap 4", retry_after=3 * SECOND, refused=True
    )
    error = from_finished(finished, {"total_tokens": 10})
    assert error.row.status == 429
    assert error.message.endswith("(cap 4)")
    assert error.facts == {"cause": "queue_full"}
    assert error.retry_after == 3 * SECOND


def test_why_an_engine_failed_is_not_told_to_callers():
    finished = Finished(Cause.ENGINE_FAILED, 10, 0, 0, detail="KeyError('/secret/path')")
    assert "secret" not in str(rendered(from_finished(finished, {})).body)


def test_work_that_was_begun_is_counted():
    error = from_finished(Finished(Cause.DEADLINE, 10, 0, 4), {"total_tokens": 14})
    assert error.facts == {"cause": "deadline_exceeded", "usage": {"total_tokens": 14}}
