"""Whether the store answers and takes writes, for `/ready` and `/metrics`.

A server whose store is away goes on for callers it knows, so it stays ready and says so: were it
taken out of rotation, all replicas would be at once.
"""

from telemetry.clock import Clock
from telemetry.measures import Counter, Gauge, text_of
from telemetry.units import SECOND


class StoreHealth:
    """Told by whoever looks after the store; used from one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._away_since: int | None = None  # monotonic ns
        self._up = Gauge("watermaster_store_up", "Whether the store answers and takes writes")
        self._away = Gauge(
            "watermaster_store_away_seconds",
            "For how long the store has not answered; 0 while it does",
        )
        self._losses = Counter("watermaster_store_losses", "Times that the store fell silent")
        self._losses.add(0)

    def answered(self) -> bool:
        """Whether that is news."""
        was_away = self._away_since is not None
        self._away_since = None
        return was_away

    def lost(self) -> bool:
        """Whether that is news."""
        if self._away_since is not None:
            return False
        self._away_since = self._clock.now()
        self._losses.add(1)
        return True

    @property
    def away(self) -> bool:
        """Whether it was silent when it was last asked."""
        return self._away_since is not None

    @property
    def away_seconds(self) -> float:
        since = self._away_since
        return 0.0 if since is None else (self._clock.now() - since) / SECOND

    def describe(self) -> dict[str, object]:
        """JSON-ready."""
        if self._away_since is None:
            return {"state": "up"}
        return {"state": "away", "away_seconds": round(self.away_seconds, 1)}

    def metrics(self) -> bytes:
        """In Prometheus' text form."""
        self._up.set(self._away_since is None)
        self._away.set(self.away_seconds)
        return text_of((self._up, self._away, self._losses))
