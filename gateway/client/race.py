"""Several attempts at once, of which the first acceptable answer counts."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gateway.client.errors import ClientError, NoneAcceptedError

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Won(Generic[AnswerT]):
    """`index` is the winner's place among the attempts."""

    index: int
    answer: AnswerT


async def first_acceptable(
    attempts: Sequence[Callable[[], Coroutine[Any, Any, AnswerT]]],
    accept: Callable[[AnswerT], bool],
    commit: Callable[[int], Awaitable[None]],
) -> Won[AnswerT]:
    """The first answer that is accepted, once `commit` was told its index; the rest is cancelled.

    Raises NoneAcceptedError, and at once what an attempt, `accept` or `commit` raises otherwise.
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
                    await commit(index)
                    return Won(index, answer)
                answers.append(answer)
    finally:
        for task in tasks:
            task.cancel()
        # How the losers end is of no interest; that they have ended is.
        await asyncio.gather(*tasks, return_exceptions=True)
    raise NoneAcceptedError(answers, errors)
