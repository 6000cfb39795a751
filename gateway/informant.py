"""Answers what other servers ask: what this one knows of a tenant's work."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.inquirer import WAIT_SECONDS
from gateway.turns import Turns
from tenants.connection import StoreUnavailable
from tenants.questions import Question, Questions

AT_A_TIME, OF_EACH_TENANT = 4, 1  # answers
MOST_WAITING = 256  # for their turn; more are not answered

# What is known of a tenant's thing of that name, JSON-ready; None for nothing.
Tell = Callable[[str, str], Awaitable[Any]]

logger = logging.getLogger("watermaster")


class Informant:
    """Used from one event loop. `Questions.follow` with `hear` goes on beside it."""

    def __init__(self, questions: Questions, own: str) -> None:
        self._questions = questions
        self._own = own  # this server's name
        self._turns = Turns(AT_A_TIME, OF_EACH_TENANT)
        self._tells: dict[str, Tell] = {}
        self._answering: set[asyncio.Task[None]] = set()

    def attach(self, kind: str, tell: Tell) -> None:
        """Answer questions of this kind from now on."""
        self._tells[kind] = tell

    def hear(self, question: Question) -> None:
        """Answer when it is its turn, unless nobody waits for it by then."""
        if question.server == self._own or len(self._answering) >= MOST_WAITING:
            return
        answering = asyncio.create_task(self._answer(question))
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def _answer(self, question: Question) -> None:
        clock = asyncio.get_running_loop().time
        due = clock() + WAIT_SECONDS
        try:
            async with self._turns.take(question.tenant):
                if clock() < due and self._understands(question):
                    await self._questions.answer(question, await self._known(question))
        except StoreUnavailable:
            pass  # whoever looks after the store says so
        except Exception:
            logger.exception("a question of another server is not answered")

    def _understands(self, question: Question) -> bool:
        """Not one of a newer server, to which nothing might be a wrong answer."""
        return not self._tells or question.kind in self._tells

    async def _known(self, question: Question) -> Any:
        tell = self._tells.get(question.kind)  # none while it starts, having done nothing yet
        return tell and await tell(question.tenant, question.name)
