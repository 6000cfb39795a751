"""What comes on a connection behind requests that are not answered yet."""

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl


class ReadAhead(FlowControl):
    """uvicorn's, which holds what came too early as the bytes it is.

    Reading goes on beside an answer, since a hang-up is noticed by nothing else, but only while
    little is held. A request that was read takes a hundred times the memory of its bytes.
    """

    held = b""

    def hold(self, data: bytes) -> None:
        """Keep `data`, which came behind what is held, for later."""
        self.held += data
        if self._full:
            self.pause_reading()

    def take(self) -> bytes:
        """What was held, and is not any more."""
        held, self.held = self.held, b""
        self.resume_reading()
        return held

    def resume_reading(self) -> None:
        """Read on, if there is room for more."""
        if not self._full:
            super().resume_reading()

    @property
    def _full(self) -> bool:
        return len(self.held) > HIGH_WATER_LIMIT
