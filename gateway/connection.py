"""Connections that can be cut: a caller who stops reading is not waited for."""

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_ABORT = "watermaster.abort"


class AbortableProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which lets the application abort the connection of a request."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[str, object] = {_ABORT: self.transport.abort}
        self.scope["extensions"] = extensions  # type: ignore[typeddict-item]

    def timeout_keep_alive_handler(self) -> None:
        # Closing would wait until the rest of the last answer is read.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()


def abort(scope: Scope) -> None:
    """Close the connection of a request at once, dropping what was not sent yet."""
    scope["extensions"][_ABORT]()
