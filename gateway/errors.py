"""The one table from a reason to its HTTP answer, and the error every handler raises.

The same row serves a refusal (a real status) and a failure in the middle of a stream (in-band,
without one). Types and statuses are OpenAI's; `gateway.dialect` translates them for others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum

from telemetry.events import Cause
from telemetry.secrets import masked


class Reason(StrEnum):
    """Why the edge itself refuses; the engine's reasons are `Cause`."""

    INVALID_JSON = "invalid_json"
    INVALID_VALUE = "invalid_value"
    INVALID_HEADER = "invalid_header"
    UNKNOWN_PARAMETER = "unknown_parameter"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    CONTEXT_LENGTH = "context_length"
    BAD_KEY = "bad_key"
    SCOPE = "scope"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TIMEOUT = "body_timeout"
    COMMIT_CONFLICT = "commit_conflict"
    ALREADY_EXISTS = "already_exists"
    KEY_NOT_ACTIVE = "key_not_active"
    RECORD_DAMAGED = "record_damaged"
    BODY_TOO_LARGE = "body_too_large"
    KEY_REUSED = "key_reused"
    CALL_RUNNING = "call_running"
    ANSWER_NOT_KEPT = "answer_not_kept"
    TENANT_BUSY = "tenant_busy"
    RATE_LIMIT = "rate_limit"
    OVER_LIMIT = "over_limit"
    QUOTA = "quota"
    SERVER_BUSY = "server_busy"
    ENGINE_NOT_READY = "engine_not_ready"
    STORE_UNAVAILABLE = "store_unavailable"
    SERVERS_SILENT = "servers_silent"
    USAGE_UNRECORDED = "usage_unrecorded"
    INTERNAL = "internal"


class Retry(Enum):
    """What the caller is told about trying again."""

    UNSAID = "unsaid"  # the status says it
    LATER = "later"  # Retry-After
    AFRESH = "afresh"  # Retry-After where one is known, for a new request; a resent one is late
    NEVER = "never"  # x-should-retry: false; stock clients resubmit a 504 otherwise


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `wait_ms` is used when the reason brings no estimate of its own."""

    status: int
    type: str
    code: str
    message: str
    retry: Retry = Retry.UNSAID
    wait_ms: int = 1000


def _bad(code: str, message: str) -> Row:
    return Row(400, "invalid_request_error", code, message)


def _conflict(code: str, message: str) -> Row:
    return Row(409, "conflict_error", code, message, Retry.NEVER)


TABLE: Mapping[Cause | Reason, Row] = {
    Reason.INVALID_JSON: _bad("invalid_json", "The body is not valid JSON."),
    Reason.INVALID_VALUE: _bad("invalid_value", "A parameter has a value that is not allowed."),
    Reason.INVALID_HEADER: _bad("invalid_header", "A header has a value that is not allowed."),
    Reason.UNKNOWN_PARAMETER: _bad("unknown_parameter", "There is no such parameter."),
    Reason.UNSUPPORTED_PARAMETER: _bad("unsupported_parameter", "This is not supported here."),
    Reason.CONTEXT_LENGTH: _bad(
        "context_length_exceeded", "The prompt and the output asked for exceed the context."
    ),
    Cause.TOO_LARGE: _bad(
        "context_length_exceeded", "The request can never fit; shorten the prompt or max_tokens."
    ),
    Cause.BAD_TOKEN: _bad("invalid_value", "The prompt holds a token id outside the vocabulary."),
    Reason.BAD_KEY: Row(
        401, "authentication_error", "invalid_api_key", "The API key is not valid."
    ),
    Reason.SCOPE: Row(
        403, "permission_error", "insufficient_scope", "The API key may not do this."
    ),
    Reason.MODEL_NOT_FOUND: Row(
        404,
        "not_found_error",
        "model_not_found",
        "The model does not exist or is not yours to use.",
    ),
    Reason.NOT_FOUND: Row(404, "not_found_error", "not_found", "There is nothing at this path."),
    Reason.METHOD_NOT_ALLOWED: Row(
        405, "invalid_request_error", "method_not_allowed", "This path has no such method."
    ),
    Reason.BODY_TIMEOUT: Row(
        408, "invalid_request_error", "body_timeout", "The request body arrived too slowly."
    ),
    Reason.COMMIT_CONFLICT: _conflict(
        "commit_conflict", "Another attempt of the task was committed before."
    ),
    Reason.ALREADY_EXISTS: _conflict("already_exists", "The id is taken."),
    Reason.KEY_NOT_ACTIVE: _conflict("key_not_active", "The key has ended; create a new one."),
    Reason.RECORD_DAMAGED: _conflict(
        "record_damaged", "The store's record of this is damaged; the message says what to do."
    ),
    Reason.KEY_REUSED: Row(
        422,
        "invalid_request_error",
        "idempotency_key_reused",
        "The idempotency key stands for another request; use a new one.",
    ),
    Reason.CALL_RUNNING: Row(
        409,
        "conflict_error",
        "idempotent_call_running",
        "The same call still runs where its answer cannot be joined; retry after the time given.",
        Retry.LATER,
    ),
    Reason.ANSWER_NOT_KEPT: _conflict(
        "idempotent_answer_not_kept",
        "The call was answered, and the answer was too large to keep; use a new key to run it.",
    ),
    Reason.BODY_TOO_LARGE: Row(
        413, "invalid_request_error", "body_too_large", "The request body is too large."
    ),
    Reason.TENANT_BUSY: Row(
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
        "Too many requests of this tenant are open; retry after the time given.",
        Retry.LATER,
    ),
    Reason.RATE_LIMIT: Row(
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
        "A limit of this tenant is reached; retry after the time given.",
        Retry.LATER,
    ),
    Reason.OVER_LIMIT: Row(
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
        "The request alone is more than a limit of this tenant allows; ask for less.",
        Retry.NEVER,
    ),
    Reason.QUOTA: Row(
        429,
        "insufficient_quota",
        "insufficient_quota",
        "A budget of this tenant is used up.",
        Retry.AFRESH,
    ),
    Cause.QUEUE_FULL: Row(
        429,
        "rate_limit_error",
        "queue_full",
        "The tenant's queue is full; retry after the time given.",
        Retry.LATER,
    ),
    Cause.DISPLACED: Row(
        429,
        "rate_limit_error",
        "queue_full",
        "The queue is full and your share of it is used up; retry after the time given.",
        Retry.LATER,
    ),
    Cause.DEADLINE_INFEASIBLE: Row(
        429,
        "rate_limit_error",
        "deadline_infeasible",
        "The deadline cannot be met; allow more time, or ask again when a time is given.",
        Retry.AFRESH,
    ),
    Cause.RELEGATED: Row(
        429,
        "rate_limit_error",
        "deadline_infeasible",
        "The deadline could no longer be met while the request waited, so it was given up.",
        Retry.AFRESH,
    ),
    Cause.CANCELLED: Row(499, "cancelled", "cancelled", "The request was cancelled.", Retry.NEVER),
    Cause.TASK_CANCELLED: Row(
        499, "cancelled", "cancelled", "The task was cancelled; use a new task id.", Retry.NEVER
    ),
    Cause.LOST_RACE: Row(
        499, "cancelled", "lost_race", "Another attempt of the task was committed.", Retry.NEVER
    ),
    Cause.RACE_OVER: Row(
        499, "cancelled", "lost_race", "Another attempt of the task was committed.", Retry.NEVER
    ),
    Cause.DISCONNECTED: Row(
        499, "cancelled", "disconnected", "The caller closed the connection.", Retry.NEVER
    ),
    Cause.SLOW_READER: Row(
        499, "cancelled", "slow_reader", "The stream was not read fast enough.", Retry.NEVER
    ),
    Reason.INTERNAL: Row(
        500, "server_error", "internal_error", "The server failed; report the x-request-id."
    ),
    Cause.DUPLICATE: Row(
        500, "server_error", "internal_error", "The server failed; report the x-request-id."
    ),
    Cause.NUMERICAL: Row(
        500,
        "server_error",
        "numerical_error",
        "The model produced no valid next token for this request.",
        Retry.NEVER,
    ),
    Cause.CONSTRAINT: Row(
        500,
        "server_error",
        "constraint_error",
        "The output constraint of this request failed.",
        Retry.NEVER,
    ),
    Reason.SERVER_BUSY: Row(
        503,
        "overloaded_error",
        "saturated",
        "The server has too many open requests; retry after the time given.",
        Retry.LATER,
    ),
    Cause.SATURATED: Row(
        503,
        "overloaded_error",
        "saturated",
        "The server's queue is full; retry after the time given.",
        Retry.LATER,
    ),
    Cause.DRAINING: Row(
        503,
        "overloaded_error",
        "draining",
        "The server is shutting down and takes no new work; retry after the time given.",
        Retry.LATER,
        5000,
    ),
    Cause.SHUTDOWN: Row(
        503,
        "overloaded_error",
        "shutting_down",
        "The server shut down before the output was complete.",
        Retry.LATER,
        5000,
    ),
    Cause.ENGINE_FAILED: Row(
        503,
        "overloaded_error",
        "engine_restarting",
        "The model engine failed and restarts; retry after the time given.",
        Retry.LATER,
        5000,
    ),
    Reason.ENGINE_NOT_READY: Row(
        503,
        "overloaded_error",
        "engine_not_ready",
        "The model engine is not ready; retry after the time given.",
        Retry.LATER,
        5000,
    ),
    Reason.STORE_UNAVAILABLE: Row(
        503,
        "overloaded_error",
        "store_unavailable",
        "API keys cannot be checked at the moment; retry after the time given.",
        Retry.LATER,
        2000,
    ),
    Reason.SERVERS_SILENT: Row(
        503,
        "overloaded_error",
        "servers_silent",
        "Not all servers have said what they know; retry after the time given.",
        Retry.LATER,
        2000,
    ),
    Reason.USAGE_UNRECORDED: Row(
        503,
        "overloaded_error",
        "usage_unrecorded",
        "Usage cannot be written down at the moment; retry after the time given.",
        Retry.LATER,
        5000,
    ),
    Cause.DEADLINE: Row(
        504, "timeout_error", "deadline_exceeded", "The deadline passed.", Retry.NEVER
    ),
    Cause.FIRST_TOKEN_DEADLINE: Row(
        504,
        "timeout_error",
        "deadline_exceeded",
        "The first-token deadline passed before any output.",
        Retry.NEVER,
    ),
}


class ApiError(Exception):
    """A refusal or failure for the caller. `facts` become further members of the error object.

    `retry_after` is the engine's own estimate, in nanoseconds; `promised` if a place is held then.
    `closes` asks for the connection to be closed because the rest of the request will not be read.
    """

    def __init__(
        self,
        reason: Cause | Reason,
        message: str | None = None,
        *,
        param: str | None = None,
        facts: Mapping[str, object] | None = None,
        retry_after: int | None = None,
        promised: bool = False,
        headers: Mapping[str, str] | None = None,
        closes: bool = False,
    ) -> None:
        self.reason = reason
        self.row = TABLE[reason]
        # Either may quote the caller, who may have pasted a key where none belongs.
        self.message = masked(message or self.row.message)
        self.param = param and masked(param)
        self.facts = dict(facts or {})
        self.retry_after = retry_after
        self.promised = promised
        self.headers = dict(headers or {})
        self.closes = closes
        super().__init__(self.message)
