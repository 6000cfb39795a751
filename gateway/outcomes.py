"""The engine's outcomes as callers are told of them."""

from collections.abc import Mapping

from engine.core.outputs import Finished
from gateway.errors import TABLE, ApiError
from gateway.retry_after import predicted
from telemetry.events import Cause

FINISH_REASONS = {
    Cause.STOP: "stop",
    Cause.STOP_STRING: "stop",
    Cause.LENGTH: "length",
    Cause.PARTIAL: "length",
}


def from_finished(finished: Finished, usage: Mapping[str, object]) -> ApiError:
    """The error for an engine's outcome that is not a completion."""
    row = TABLE[finished.cause]
    counted = {} if finished.refused else {"usage": dict(usage)}
    # Why an engine failed is the operator's affair: it is an exception's text, and in the log.
    told = finished.detail and finished.cause is not Cause.ENGINE_FAILED
    message = f"{row.message} ({finished.detail})" if told else row.message
    return ApiError(
        finished.cause,
        message,
        param="prompt" if finished.cause is Cause.BAD_TOKEN else None,
        facts={"cause": str(finished.cause), **predicted(finished), **counted},
        retry_after=finished.retry_after,
        promised=finished.promised,
    )
