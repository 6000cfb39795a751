"""Connections that tell when they are lost, and that can be cut.

No framework cancels a handler that is not writing, and whoever stops reading is not waited for.
"""

from collections.abc import Callable
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_KEY = "watermaster.connection"


class WatchedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which the application finds by `connection_of` while it answers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lost = False
        self._on_gone: Callable[[], None] | None = None
        self._answered: RequestResponseCycle | None = None

    def watch(self, on_gone: Callable[[], None]) -> None:
        """Call `on_gone` when the caller hangs up, at once if that has happened."""
        # uvicorn stops reading while it holds a long body, and would not notice.
        self.flow.resume_reading()
        self._on_gone = on_gone
        if self._lost:
            on_gone()

    def unwatch(self) -> None:
        """Call nobody any more."""
        self._on_gone = None

    @property
    def receiving(self) -> bool:
        """Whether some of the body of the request that is being answered is still to come."""
        return self._answered is not None and self._answered.more_body

    def abort(self) -> None:
        """Close the connection at once, dropping what was not sent yet."""
        self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[str, object] = {_KEY: self}
        self.scope["extensions"] = extensions  # type: ignore[typeddict-item]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None:  # uvicorn tells the last request that came on it alone
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)
        self._lost = True
        if self._on_gone is not None:
            self._on_gone()

    def timeout_keep_alive_handler(self) -> None:
        # Closing would wait until the rest of the last answer is read.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()


def connection_of(scope: Scope) -> WatchedProtocol:
    """The one on which a request came."""
    connection: WatchedProtocol = scope["extensions"][_KEY]
    return connection
