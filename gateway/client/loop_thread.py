"""An event loop on a thread of its own, for callers who have none."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class LoopThread:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """The result of `work`, which sees the context variables of the caller.

        Interrupting the caller cancels it.
        """
        if self.closed or threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the client is closed, or called from within its own call")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # of no effect once it is done

    def close(self) -> None:
        """End the thread; nothing may be running on it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
