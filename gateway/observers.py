"""Everything that reads the engine's events: metrics, the event log, traces."""

from gateway.config import Settings
from gateway.event_pump import EventPump
from gateway.history import History
from telemetry.clock import Clock
from telemetry.event_log import EventLog
from telemetry.metrics import MetricsFold
from telemetry.tracing import Tracing, exporter


class Observers:
    """One engine's readers behind one pump; create it on the event loop."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        telemetry = settings.telemetry
        self.tracing = Tracing(clock, exporter(telemetry.exporter, telemetry.endpoint))
        self.log = EventLog(telemetry.event_log_size)
        self._fold = MetricsFold(settings.model.id)
        self.pump = EventPump((self._fold.apply_all, self.log.extend, self.tracing.apply_all))
        self.history = History(self.log, self.pump.flush)

    def metrics(self) -> bytes:
        """The Prometheus page, with everything the engine has handed over so far."""
        self.pump.flush()
        self._fold.note_dropped(self.pump.dropped)
        return self._fold.render()
