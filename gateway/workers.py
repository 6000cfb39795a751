"""Threads for what takes time by the size of a body: parsing, templates, tokenising."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from gateway.turns import Turns

ArgsT = ParamSpec("ArgsT")
ResultT = TypeVar("ResultT")


class Workers:
    """A tenant has one job at work at a time, so that nobody waits behind another's long prompts.

    Used from one event loop. What waits is bounded by the calls that are open at the edge.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenise")
        self._turns = Turns(threads, 1)

    async def run(
        self,
        tenant: str,
        function: Callable[ArgsT, ResultT],
        *args: ArgsT.args,
        **kwargs: ArgsT.kwargs,
    ) -> ResultT:
        """The result of `function`, run in a thread once it is the tenant's turn."""
        loop = asyncio.get_running_loop()
        async with self._turns.take(tenant):
            return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Wait for what is at work; what still waits is cancelled."""
        self._pool.shutdown(wait=True, cancel_futures=True)
