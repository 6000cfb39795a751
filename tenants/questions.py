"""Questions that a server asks all servers of the store, and their answers, as messages.

They are for what each server alone knows of a tenant's work. Nothing is kept: whoever is out of
touch misses a question, so with how many heard it comes who is on the store.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar

import orjson

from tenants.cancellations import CHANNEL as EVERY_SERVER
from tenants.connection import Connection
from tenants.servers import SERVERS, Roll

log = logging.getLogger(__name__)

QUESTIONS = "wm:questions"
ANSWERS = "wm:answers:"  # and the name of who has asked
MOST_BYTES = 512 << 10  # of an answer


@dataclass(frozen=True, slots=True)
class Question:
    """What does each know of `name`, which is of some `kind`, of a tenant? `server` asks."""

    id: str
    server: str
    kind: str
    tenant: str
    name: str


@dataclass(frozen=True, slots=True)
class Answer:
    """`part` is what `server` knows, JSON-ready; None for nothing."""

    question: str
    server: str
    part: Any


MessageT = TypeVar("MessageT", Question, Answer)


@dataclass(frozen=True, slots=True)
class Heard:
    """So many `servers` hear a question, who asks included; `deaf` are there and cannot, being

    older than questions.
    """

    servers: int
    deaf: int
    roll: Roll


class Questions:
    """The store's side of it, for the server called `own`.

    `ask` and `answer` raise StoreUnavailable.
    """

    def __init__(self, connection: Connection, own: str) -> None:
        self._connection = connection
        self._own = own

    async def ask(self, question: Question) -> Heard:
        """Put it to every server, this one too, whose answers `follow` reports."""
        channel = self._connection.channel
        rest = [channel(QUESTIONS), channel(EVERY_SERVER), _text(question)]
        heard, all_, now, seen = await self._connection.run("ask", [SERVERS], rest)
        return Heard(heard, max(0, all_ - heard), Roll.of(now, seen))

    async def answer(self, question: Question, part: Any) -> None:
        """Tell who has asked. Raises ValueError if that would be too long."""
        text = _text(Answer(question.id, self._own, part))
        if len(text) > MOST_BYTES:
            raise ValueError(f"an answer of {len(text)} bytes, at most {MOST_BYTES} are sent")
        channel = self._connection.channel(ANSWERS + question.server)
        await self._connection.call(lambda client: client.publish(channel, text))

    async def follow(
        self, on_question: Callable[[Question], None], on_answer: Callable[[Answer], None]
    ) -> None:
        """Report what anybody asks, and what is answered to this server, for ever."""

        def hear(kind: type[MessageT], report: Callable[[MessageT], None], text: str) -> None:
            try:
                message = _read(kind, text)
            except ValueError as error:
                log.warning("what another server says cannot be read: %s", error)
            else:
                report(message)

        channel = self._connection.channel
        await self._connection.listen(
            {
                channel(QUESTIONS): partial(hear, Question, on_question),
                channel(ANSWERS + self._own): partial(hear, Answer, on_answer),
            }
        )


def _text(message: Question | Answer) -> str:
    return orjson.dumps(message).decode()


def _read(kind: type[MessageT], text: str) -> MessageT:
    """Passes over what a newer version adds; raises ValueError for what is no such message."""
    try:
        values = orjson.loads(text)
        return kind(**{field.name: values[field.name] for field in fields(kind)})
    except (TypeError, KeyError) as error:
        raise ValueError(f"no {kind.__name__.lower()}: {error}") from None
