"""Estimates for people who wait: how fast queued work drains."""


class DrainRate:
    """Tokens per second of engine time, as an exponentially weighted mean over steps."""

    def __init__(self, weight: float = 0.05) -> None:
        self._weight = weight
        self._tokens = 0.0
        self._seconds = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """One step computed `tokens` positions in `seconds`."""
        self._tokens += self._weight * (tokens - self._tokens)
        self._seconds += self._weight * (seconds - self._seconds)

    @property
    def seconds_per_token(self) -> float:
        """Engine time of one position; 0 before any step was seen."""
        return self._seconds / self._tokens if self._tokens > 0 else 0.0

    def time_for(self, tokens: int) -> float | None:
        """Seconds until `tokens` queued tokens are computed; None before any step was seen."""
        if self._tokens <= 0 or self._seconds <= 0:
            return None
        return tokens * self._seconds / self._tokens
