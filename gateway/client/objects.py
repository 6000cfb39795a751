"""JSON objects out of what was received, whoever sent it."""

import json
from typing import Any


def read_object(text: str | bytes) -> dict[str, Any]:
    """Raises ValueError for anything but a JSON object; something in between may have answered."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("what was received is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("what was received is no JSON object")  # noqa: TRY004  # as if no JSON
    return value


def error_object(body: bytes) -> dict[str, Any]:
    """The error object of a body that may be no JSON at all."""
    text = body.decode(errors="replace")
    try:
        error = read_object(text).get("error")
    except ValueError:
        error = None
    return as_error(error, text)


def as_error(error: object, text: str) -> dict[str, Any]:
    """`error` itself where it is an object; else one whose message is the beginning of `text`."""
    return error if isinstance(error, dict) else {"message": text[:200]}
