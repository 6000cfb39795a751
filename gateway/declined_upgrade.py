"""Requests that offer to go on in another protocol are answered in HTTP/1.1, as RFC 9110 allows.

Some clients offer HTTP/2 with whatever they send in the clear, Java's among them. The parser takes
all that follows such a head for the other protocol and lets go of it, so a body is read by another.
"""

from collections.abc import Iterable
from typing import Any

import httptools

_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


def next_parser(listener: Any) -> Any:
    """For the body of such a request, once it was fed the `plain_head`, and all that follows."""
    parser = httptools.HttpRequestParser(listener)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def plain_head(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A head that announces the same body and offers nothing; its listener passes over it."""
    framing = b"".join(b"%b: %b\r\n" % pair for pair in headers if pair[0] in _FRAMING)
    return b"POST / HTTP/1.1\r\n%b\r\n" % framing
