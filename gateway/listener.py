"""The listening socket, taken before anything slow is started."""

import errno
import socket


class ListenError(Exception):
    """The address cannot be listened on; the message says why and what to do."""


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket (not yet listening) on the first address that `host` resolves to."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ListenError(
            f"server.host {host!r} is not an address here: {error.strerror}"
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        # Connections of an earlier run that wait to expire do not keep the port; a live one does.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Two processes may both have bound an unused port; only one may listen.
        listener.listen()
    except OSError as error:
        listener.close()
        raise ListenError(_explain(host, port, error)) from None
    return listener


def _explain(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken: stop what listens there, or choose another port"
            " with --port"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights than this user has: choose one above 1023"
    return f"cannot listen on {host}:{port}: {error.strerror}"
