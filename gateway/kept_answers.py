"""Answers that this replica keeps itself, in front of the store and in its absence."""

import base64
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Self

from telemetry.clock import Clock
from telemetry.units import MILLISECOND
from tenants.calls import KEPT_MS, CallName

MOST_BYTES = 32 << 20
# How an answer begins in the store. Another form needs another letter, so that a version that does
# not know it can say so.
_STREAM, _WHOLE = "s", "w"


@dataclass(frozen=True, slots=True)
class Kept:
    """The body of an answer, in one piece or all events of a stream; None if it was too large.

    `routed_to` is the model that gave it, where that was not the preferred one.
    """

    body: bytes | None
    stream: bool = False
    routed_to: str = ""

    def text(self) -> str | None:
        """For the store."""
        if self.body is None:
            return None
        kind = _STREAM if self.stream else _WHOLE
        model = f"{self.routed_to}:" if self.routed_to else ""
        return kind + model + base64.b64encode(zlib.compress(self.body, 1)).decode()

    @classmethod
    def of(cls, text: str) -> Self:
        """Raises UnreadableError for what `text` did not write, a newer version's for instance."""
        kind, (model, _, body) = text[:1], text[1:].rpartition(":")  # which base64 has none of
        if kind not in {_STREAM, _WHOLE}:
            raise UnreadableError(f"an answer of the kind {kind!r}")
        try:
            whole = zlib.decompress(base64.b64decode(body, validate=True))
        except (ValueError, zlib.error) as error:
            raise UnreadableError(str(error)) from None
        return cls(whole, kind == _STREAM, model)


class UnreadableError(Exception):
    """An answer was kept in a form that this version does not know, or was damaged."""


class KeptAnswers:
    """Those kept last, within a bound of bytes and for as long as the store keeps them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bytes = 0
        self._answers: OrderedDict[tuple[str, str], tuple[int, str, Kept]] = OrderedDict()

    def put(self, name: CallName, kept: Kept) -> None:
        ends = self._clock.now() + KEPT_MS * MILLISECOND
        self.drop(name)
        self._answers[name.tenant, name.key] = ends, name.print, kept
        self._bytes += _size(kept)
        while self._bytes > MOST_BYTES:
            self._drop(next(iter(self._answers)))

    def find(self, name: CallName) -> tuple[str, Kept] | None:
        """What is kept under a call's key, and the print of its payload."""
        found = self._answers.get((name.tenant, name.key))
        if found is None:
            return None
        ends, known, kept = found
        if ends <= self._clock.now():
            self.drop(name)
            return None
        return known, kept

    def drop(self, name: CallName) -> None:
        """Keep the call's answer no longer."""
        self._drop((name.tenant, name.key))

    def _drop(self, key: tuple[str, str]) -> None:
        if key in self._answers:
            self._bytes -= _size(self._answers.pop(key)[2])


def _size(kept: Kept) -> int:
    """Bytes, with what an entry takes by itself."""
    return 512 + len(kept.body or b"")
