"""W3C `baggage`: lineage that tracing libraries pass on from hop to hop by themselves.

The form is that of https://www.w3.org/TR/baggage/. What is malformed is ignored, as it says, since
the header may have been written hops away by somebody who knows nothing of us.
"""

from urllib.parse import unquote

from telemetry import semconv

KEYS = {semconv.TASK: "x-task-id", semconv.RUN: "x-run-id", semconv.ATTEMPT: "x-attempt-id"}


def read_baggage(text: str) -> dict[str, str]:
    """The values of our keys, unchecked, under the names of the headers that say the same.

    `text` is the header's, its lines joined by commas. Of a key that comes twice the last counts.
    """
    found = {}
    for member in text.split(","):
        pair = member.partition(";")[0]  # properties follow
        key, _, value = pair.partition("=")
        name = KEYS.get(key.strip(" \t"))
        if name is not None:
            found[name] = unquote(value.strip(" \t"))
    return found
