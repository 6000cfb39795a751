"""Everything that reads the engines' events: metrics, event logs, traces."""

from gateway.config import TelemetrySettings
from gateway.event_pump import EventPump
from gateway.history import History
from telemetry.clock import Clock
from telemetry.event_log import EventLog
from telemetry.metrics import MetricsFold, render
from telemetry.tracing import Tracing, exporter


class Observer:
    """One engine's readers behind one pump."""

    def __init__(self, engine: str, log_size: int, tracing: Tracing) -> None:
        log = EventLog(log_size)
        self._fold = MetricsFold(engine)
        self.pump = EventPump((self._fold.apply_all, log.extend, tracing.apply_all))
        self.history = History(log, self.pump.flush)

    def metrics(self) -> MetricsFold:
        """With everything the engine has handed over so far."""
        self.pump.flush()
        self._fold.note_dropped(self.pump.dropped)
        return self._fold


class Observers:
    """Those of all engines. Create it, and add engines, on the event loop."""

    def __init__(self, settings: TelemetrySettings, clock: Clock) -> None:
        self.tracing = Tracing(clock, exporter(settings.exporter, settings.endpoint))
        self._log_size = settings.event_log_size
        self._each: list[Observer] = []

    def of(self, engine: str) -> Observer:
        """Those of a further engine."""
        observer = Observer(engine, self._log_size, self.tracing)
        self._each.append(observer)
        return observer

    def metrics(self) -> bytes:
        """The Prometheus page."""
        return render([observer.metrics() for observer in self._each])

    def flush(self) -> None:
        """Let everybody see everything posted so far."""
        for observer in self._each:
            observer.pump.flush()
