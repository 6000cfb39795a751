"""The recent events, kept in a ring, and their stable form as lines of JSON."""

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from threading import Lock

from telemetry.events import Event


class EventLog:
    """The last `capacity` events. Any thread may add and any thread may read."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._events: deque[Event] = deque(maxlen=capacity)
        self._lock = Lock()

    def extend(self, events: Iterable[Event]) -> None:
        batch = tuple(events)
        with self._lock:
            self._events.extend(batch)

    def snapshot(self) -> tuple[Event, ...]:
        """The kept events, the oldest first."""
        with self._lock:
            return tuple(self._events)


def encode(event: Event) -> bytes:
    """One line of JSON, without its end: the event's type under "event", then its fields.

    Keys are sorted and numbers written exactly, so equal logs are equal bytes. Raises TypeError
    or ValueError for what is not plain data (a NumPy number, an infinity).
    """
    line = {"event": type(event).__name__, **_fields(event)}
    return json.dumps(line, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _fields(value: object) -> dict[str, object]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}  # type: ignore[arg-type]


def _plain(value: object) -> object:
    return _fields(value) if is_dataclass(value) else value
