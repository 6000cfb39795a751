"""An event loop on a thread of its own, for callers who have none."""

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")
Last = Callable[[], Coroutine[Any, Any, None]]


class LoopThread:
    """Ends when it is closed, or when nobody holds it any more; `last` is run then."""

    def __init__(self, last: Last) -> None:
        started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._thread = threading.Thread(target=_serve, args=(started,), daemon=True)
        self._thread.start()
        self._loop = started.result()
        self._submitting = threading.Lock()
        self._end = weakref.finalize(self, _begin_end, self._loop, last)
        self._end.atexit = False  # the thread goes with the process

    @property
    def closed(self) -> bool:
        return not self._end.alive

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """The result of `work`, which sees the context variables of the caller.

        Interrupting the caller cancels it. Raises RuntimeError if the thread was closed, even
        meanwhile, is the caller's own, or stayed behind in the process that this one forked from.
        """
        with self._submitting:
            gone = self.closed or not self._thread.is_alive()
            if gone or threading.current_thread() is self._thread:
                work.close()
                raise RuntimeError(
                    "the client is closed, another process's, or called from within its own call"
                )
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise RuntimeError("the client was closed during the call") from None
        finally:
            future.cancel()  # of no effect once it is done

    def close(self) -> None:
        """End what runs, and the thread; closing again does nothing."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("the client cannot be closed from within its own call")
        with self._submitting:  # what is submitted later would wait for ever
            ending = self._end()
        if ending is not None and self._thread.is_alive():
            ending.result()
            self._thread.join()


def _serve(started: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner() as runner:  # which cancels what is left at the end
        started.set_result(runner.get_loop())
        runner.get_loop().run_forever()


def _begin_end(loop: asyncio.AbstractEventLoop, last: Last) -> concurrent.futures.Future[None]:
    return asyncio.run_coroutine_threadsafe(_finish(loop, last), loop)


async def _finish(loop: asyncio.AbstractEventLoop, last: Last) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    try:
        await asyncio.gather(*others, return_exceptions=True)
        await last()
    finally:
        loop.stop()
