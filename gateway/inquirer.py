"""Asks the other servers of the store what they know of a tenant's work."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

from gateway.asking import Answers, Asking, PartT
from gateway.turns import Turns
from tenants.connection import StoreUnavailable
from tenants.questions import Answer, Question, Questions
from tenants.servers import Servers

WAIT_SECONDS = 1.0  # for answers, from when somebody wants to know
AT_A_TIME, OF_EACH_TENANT = 16, 4  # questions; who waits for one that is not asked yet shares it

Read = Callable[[Any], PartT]


class _Subject(NamedTuple):
    kind: str
    tenant: str
    name: str


class Inquirer:
    """Used from one event loop. `Questions.follow` with `hear` and `take` goes on beside it.

    `alone` says whether no other server was seen lately, and then nobody is asked; `away` whether
    the store was not.
    """

    def __init__(
        self,
        questions: Questions,
        servers: Servers,
        alone: Callable[[], bool],
        away: Callable[[], bool],
    ) -> None:
        self._questions = questions
        self._servers = servers
        self._alone = alone
        self._away = away
        self._turns = Turns(AT_A_TIME, OF_EACH_TENANT)
        self._waiting: dict[_Subject, asyncio.Task[Answers[Any]]] = {}
        self._asked: dict[str, Asking[Any]] = {}  # by the question's id
        self._sending: set[asyncio.Task[None]] = set()

    async def ask(self, kind: str, tenant: str, name: str, read: Read[PartT]) -> Answers[PartT]:
        """What the others know, as `read` takes it in, after `WAIT_SECONDS` at most."""
        if self._alone():
            others = self._servers.roll.without({self._servers.own})
            return Answers((), len(others.there), len(others.gone))
        if self._away():
            return Answers()
        subject = _Subject(kind, tenant, name)
        asking = self._waiting.get(subject)
        if asking is None:
            asking = asyncio.create_task(self._in_turn(subject, read))
            self._waiting[subject] = asking
        await asyncio.wait({asking})  # shared, so not cancelled with whom it is for
        return asking.result()

    def hear(self, question: Question) -> None:
        """A question as every server hears it: one's own is as good as answered."""
        if question.server == self._servers.own:
            self.take(Answer(question.id, question.server, None))

    def take(self, answer: Answer) -> None:
        """What a server answers; if that comes too late, nobody wants to know any more."""
        asking = self._asked.get(answer.question)
        if asking is not None:
            asking.take(answer.server, answer.part)

    async def _in_turn(self, subject: _Subject, read: Read[PartT]) -> Answers[PartT]:
        asking = Asking(read)
        try:
            async with asyncio.timeout(WAIT_SECONDS), self._turns.take(subject.tenant):
                self._share_no_more(subject)
                await self._put(subject, asking)
        except TimeoutError:
            self._share_no_more(subject)
        return asking.answers()

    def _share_no_more(self, subject: _Subject) -> None:
        """What is asked now may be too old for whoever comes from now on."""
        if self._waiting.get(subject) is asyncio.current_task():
            del self._waiting[subject]

    async def _put(self, subject: _Subject, asking: Asking[Any]) -> None:
        question = Question(secrets.token_hex(8), self._servers.own, *subject)
        self._asked[question.id] = asking
        sending = asyncio.create_task(self._send(question, asking))
        self._sending.add(sending)  # to its end, which the store sees to
        sending.add_done_callback(self._sending.discard)
        try:
            await asking.done.wait()
        finally:
            del self._asked[question.id]

    async def _send(self, question: Question, asking: Asking[Any]) -> None:
        try:
            asking.expect(await self._questions.ask(question))
        except StoreUnavailable:
            asking.done.set()
