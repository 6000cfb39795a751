"""One question to the other servers while it is asked, and what came of it."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tenants.questions import Heard

PartT = TypeVar("PartT")

logger = logging.getLogger("watermaster")


@dataclass(frozen=True, slots=True)
class Answers(Generic[PartT]):
    """What other servers know, each its part; one that knows nothing has none.

    `silent` are there, as far as can be told, and have not said what they know: None if nobody can
    say how many. `gone` were there lately, and what they knew is lost.
    """

    parts: tuple[PartT, ...] = ()
    silent: int | None = None
    gone: int = 0

    @property
    def missing(self) -> int | None:
        """Servers that had no say; None if nobody can say how many."""
        return None if self.silent is None else self.silent + self.gone


class Asking(Generic[PartT]):
    """`read` takes in an answer, and raises ValueError for one that it does not understand.

    `done` is set once all that heard the question have answered.
    """

    def __init__(self, read: Callable[[Any], PartT]) -> None:
        self.done = asyncio.Event()
        self._read = read
        self._heard: Heard | None = None
        self._answered: set[str] = set()
        self._parts: dict[str, PartT | None] = {}  # of whose answer was understood

    def expect(self, heard: Heard) -> None:
        """Who is to answer; some may have, already."""
        self._heard = heard
        self._look()

    def take(self, server: str, part: Any) -> None:
        """A server's answer: None if it knows nothing. Who asks has nothing to tell itself."""
        self._answered.add(server)
        try:
            self._parts[server] = None if part is None else self._read(part)
        except ValueError as error:
            logger.warning("what another server knows cannot be read: %s", error)
        self._look()

    def answers(self) -> Answers[PartT]:
        """What has come so far. Whoever else heard it, only servers of this store count."""
        heard = self._heard
        if heard is None:
            return Answers()
        told = sorted(name for name in self._parts if name in heard.roll)
        missing = heard.roll.without(told)
        silent = max(len(missing.there), heard.servers - len(told)) + heard.deaf
        parts = tuple(part for name in told if (part := self._parts[name]) is not None)
        return Answers(parts, silent, len(missing.gone))

    def _look(self) -> None:
        if self._heard is not None and len(self._answered) >= self._heard.servers:
            self.done.set()
