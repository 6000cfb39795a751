"""The client for code that is not asynchronous: the asynchronous one, run by a thread."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from gateway.client.asynchronous import Answer, AsyncClient, accept_all
from gateway.client.loop_thread import LoopThread
from gateway.client.race import Won
from gateway.client.retries import DEFAULT_POLICY, RetryPolicy
from gateway.client.stream import Stream


class Client:
    """As `AsyncClient`, whose methods say what these do. Threads may share one."""

    def __init__(self, url: str, key: str, policy: RetryPolicy = DEFAULT_POLICY) -> None:
        self._client = AsyncClient(url, key, policy)
        self._thread = LoopThread(self._client.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread; closing again does nothing.

        Calls of other threads that are under way raise RuntimeError.
        """
        self._thread.close()

    def chat(self, *, within: float | None = None, **body: Any) -> Answer:
        return self._thread.run(self._client.chat(within=within, **body))

    def completions(self, *, within: float | None = None, **body: Any) -> Answer:
        return self._thread.run(self._client.completions(within=within, **body))

    def stream(self, *, within: float | None = None, **body: Any) -> "BlockingStream":
        stream = self._thread.run(self._client.stream(within=within, **body))
        return BlockingStream(stream, self._thread)

    def race(
        self,
        requests: Sequence[Mapping[str, Any]],
        accept: Callable[[Answer], bool] = accept_all,
        *,
        within: float | None = None,
    ) -> Won[Answer]:
        """`accept` runs on the client's thread and must not call the client."""
        return self._thread.run(self._client.race(requests, accept, within=within))

    def backpressure(self) -> Answer:
        return self._thread.run(self._client.backpressure())

    def cancel(self, task: str, run: str | None = None, attempt: str | None = None) -> None:
        self._thread.run(self._client.cancel(task, run, attempt))

    def commit(self, task: str, attempt: str, run: str | None = None) -> None:
        self._thread.run(self._client.commit(task, attempt, run))


class BlockingStream:
    """As `Stream`."""

    def __init__(self, stream: Stream, thread: LoopThread) -> None:
        self._stream = stream
        self._thread = thread

    def __iter__(self) -> Iterator[Answer]:
        return self

    def __next__(self) -> Answer:
        chunk = self._thread.run(self._next())
        if chunk is None:
            raise StopIteration
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As `Stream.aclose`; from any thread, and of no effect once the client is closed."""
        if not self._thread.closed:
            self._thread.run(self._stream.aclose())

    async def _next(self) -> Answer | None:
        return await anext(self._stream, None)
