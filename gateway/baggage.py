"""W3C `baggage`: lineage that tracing libraries pass on from hop to hop by themselves.

The form is that of https://www.w3.org/TR/baggage/. What is malformed is ignored, as it says, since
the header may have been written hops away by somebody who knows nothing of us; the answer says so.
"""

from collections.abc import Sequence
from urllib.parse import unquote

from gateway.call import RawHeaders
from telemetry import semconv

# By the names of the headers that say the same.
KEYS = {semconv.TASK: "x-task-id", semconv.RUN: "x-run-id", semconv.ATTEMPT: "x-attempt-id"}
PASSED_OVER = "x-watermaster-ignored-baggage"


def told_of(passed_over: Sequence[str]) -> RawHeaders:
    """The header that names the members which were malformed; their values are not repeated."""
    return [(PASSED_OVER.encode(), ", ".join(passed_over).encode())]


def read_baggage(text: str) -> dict[str, str]:
    """The values of our keys, unchecked.

    `text` is the header's, its lines joined by commas. Of a key that comes twice the last counts.
    """
    found = {}
    for member in text.split(","):
        pair = member.partition(";")[0]  # properties follow
        key, _, value = pair.partition("=")
        name = key.strip(" \t")
        if name in KEYS:
            found[name] = unquote(value.strip(" \t"))
    return found
