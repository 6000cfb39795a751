"""A submission that is not taken in."""

from policies.admission import Forecast
from telemetry.events import Cause
from telemetry.units import SECOND

UNKNOWN_WAIT = SECOND  # told to callers before any step was measured


class Refusal(Exception):  # noqa: N818 - an outcome, not a fault
    """Why, and for how long. `retry_after` is in nanoseconds; with `promise`, a place may be held

    for the caller then. `forecast` is what was predicted for the request.
    """

    def __init__(
        self,
        cause: Cause,
        detail: str,
        retry_after: int | None = None,
        *,
        promise: bool = False,
        forecast: Forecast | None = None,
    ) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail
        self.retry_after = retry_after
        self.promise = promise
        self.forecast = forecast
