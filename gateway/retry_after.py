"""When callers are told to come back, and what they are told was predicted for them."""

import math
import random

from engine.core.outputs import Finished
from telemetry.units import MILLISECOND

# Stock clients sleep through or ignore a longer Retry-After, so they are told not to retry.
LONGEST_WAIT_MS = 60_000
JITTER = 0.25


def wait_ms(estimate: int | None, otherwise: int, *, promised: bool) -> int:
    """The wait to tell, in milliseconds, for an `estimate` in nanoseconds.

    Waits are de-synchronised among callers by up to a quarter, a quarter of a minute at most.
    Promised ones are not: those are apart already, and the place is not held for long.
    """
    wait = otherwise if estimate is None else max(1, math.ceil(estimate / MILLISECOND))
    if promised:
        return wait
    most = wait + JITTER * min(wait, LONGEST_WAIT_MS)
    if wait <= LONGEST_WAIT_MS:
        most = min(most, LONGEST_WAIT_MS)
    return math.ceil(random.uniform(wait, most))


def headers_of(wait: int, *, again: bool) -> list[tuple[bytes, bytes]]:
    """Headers for a wait in milliseconds; `again` if the same request may be sent once more."""
    headers = [
        (b"retry-after", str(math.ceil(wait / 1000)).encode()),
        (b"retry-after-ms", str(wait).encode()),
    ]
    if not again or wait > LONGEST_WAIT_MS:
        headers.append((b"x-should-retry", b"false"))
    return headers


def predicted(finished: Finished) -> dict[str, int]:
    """Facts about a request refused because of its deadline, in milliseconds from now."""
    forecast = finished.forecast
    if forecast is None:
        return {}
    return {
        "predicted_start_ms": round(forecast.start * 1000),
        "predicted_first_token_ms": round(forecast.first_token * 1000),
        "predicted_finish_ms": round(forecast.finish * 1000),
    }
