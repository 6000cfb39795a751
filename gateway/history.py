"""What has happened lately, as the gateway sees it: the event log with the edge's own events."""

from collections.abc import Callable

from telemetry.event_log import EventLog
from telemetry.events import Event


class History:
    """Used from the event loop. `flush` lets the log catch up with the engine."""

    def __init__(self, log: EventLog, flush: Callable[[], None]) -> None:
        self._log = log
        self._flush = flush

    def record(self, event: Event) -> None:
        """Add an event of the edge; the engine's come by themselves."""
        self._log.extend((event,))

    def events(self) -> tuple[Event, ...]:
        """Everything that is still kept, the oldest first."""
        self._flush()
        return self._log.snapshot()
