"""Several attempts at once, of which the first acceptable answer counts."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gateway.client.errors import ClientError, NoneAcceptedError, RefusedError
from gateway.client.retries import GivenUp

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Won(Generic[AnswerT]):
    """`index` is the winner's place among the attempts.

    `uncommitted` is why the server could not be told who won. The losers were hung up on all the
    same, but calls that come late under the task are not refused.
    """

    index: int
    answer: AnswerT
    uncommitted: ClientError | None = None


async def first_acceptable(
    attempts: Sequence[Callable[[], Coroutine[Any, Any, AnswerT]]],
    accept: Callable[[AnswerT], bool],
    commit: Callable[[int], Awaitable[None]],
) -> Won[AnswerT]:
    """The first answer that is accepted, once `commit` was told its index; the rest is cancelled.

    Raises NoneAcceptedError, at once what an attempt or `accept` raises otherwise, and a commit's
    RefusedError. One that does not come through loses no answer, for that is there and paid for.
    """
    tasks = [asyncio.create_task(attempt()) for attempt in attempts]
    answers: list[AnswerT] = []
    errors: list[ClientError] = []
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=tasks.index):
                try:
                    answer = task.result()
                except ClientError as error:
                    errors.append(error)
                    continue
                if accept(answer):
                    index = tasks.index(task)
                    return Won(index, answer, await _undelivered(commit(index)))
                answers.append(answer)
    finally:
        for task in tasks:
            task.cancel()
        # How the losers end is of no interest; that they have ended is.
        await asyncio.gather(*tasks, return_exceptions=True)
    raise NoneAcceptedError(answers, errors)


async def _undelivered(commit: Awaitable[None]) -> ClientError | None:
    """Why a commit did not come through; raises RefusedError if the server says no to it."""
    try:
        await commit
    except ClientError as error:
        if isinstance(error, RefusedError) and error.given_up is GivenUp.FINAL:
            raise
        return error
    return None
