"""What a caller reads: the pending outputs of one request, in a buffer of its own."""

import asyncio
from collections.abc import Callable

from engine.core.commands import Abort, Command, Finish
from engine.core.outputs import Finished, Output
from engine.core.plan import TokenLogprob
from telemetry.events import Cause

MAX_BUFFERED_TOKENS = 4096  # a reader this far behind is cut off


class Generation:
    """All choices of one request; `sequences[i]` is choice i. Lives on the event loop.

    The engine only ever appends, so a slow reader delays nobody; past `max_buffered` tokens the
    request is ended with Cause.SLOW_READER.
    """

    def __init__(
        self,
        sequences: tuple[int, ...],
        post: Callable[[Command], None],
        max_buffered: int = MAX_BUFFERED_TOKENS,
    ) -> None:
        self.sequences = sequences
        self._post = post
        self._max_buffered = max_buffered
        self._open = set(sequences)
        self._tokens: list[tuple[int, int, TokenLogprob | None]] = []
        self._ended: dict[int, Finished] = {}
        self._ends: dict[int, Finished] = {}
        self._over: Callable[[list[Finished]], None] | None = None
        self._aborted = False
        self._news = asyncio.Event()

    async def next(self) -> tuple[Output, ...]:
        """Everything pending, oldest first, once there is something; () after the last output."""
        await self._anything()
        return self._take()

    async def refusal(self) -> Finished | None:
        """Wait for the first output; how it ended if nothing was generated. Takes nothing."""
        await self._anything()
        if self._open or self._tokens:
            return None
        return self._ended[self.sequences[0]]

    def when_over(self, callback: Callable[[list[Finished]], None]) -> None:
        """Call `callback` with all ends once the last sequence has ended, read or not."""
        self._over = callback
        if not self._open:
            callback(list(self._ends.values()))

    def finish(self, sequence: int, output_tokens: int) -> None:
        """A stop string was found: keep that many tokens and end with Cause.STOP_STRING."""
        if sequence in self._open:
            self._post(Finish(sequence, output_tokens))

    def cancel(self, cause: Cause) -> None:
        """End what still runs; idempotent. The terminal outputs follow as usual."""
        if self._open and not self._aborted:
            self._aborted = True
            self._post(Abort(tuple(sorted(self._open)), cause))

    def push_token(self, sequence: int, token: int, logprob: TokenLogprob | None) -> None:
        """Called by the engine's hand-off, on the event loop."""
        self._tokens.append((sequence, token, logprob))
        if len(self._tokens) > self._max_buffered:
            self.cancel(Cause.SLOW_READER)
        self._news.set()

    def push_end(self, sequence: int, finished: Finished) -> None:
        """Called by the engine's hand-off, on the event loop."""
        self._open.discard(sequence)
        self._ended[sequence] = self._ends[sequence] = finished
        if self._over and not self._open:
            self._over(list(self._ends.values()))
        self._news.set()

    async def _anything(self) -> None:
        if self._open and not self._tokens and not self._ended:
            self._news.clear()
            await self._news.wait()

    def _take(self) -> tuple[Output, ...]:
        tokens, self._tokens = self._tokens, []
        ended, self._ended = self._ended, {}
        by_sequence: dict[int, list[tuple[int, TokenLogprob | None]]] = {}
        for sequence, token, logprob in tokens:
            by_sequence.setdefault(sequence, []).append((token, logprob))
        return tuple(
            Output(
                sequence=sequence,
                tokens=tuple(token for token, _ in by_sequence.get(sequence, ())),
                logprobs=tuple(
                    logprob for _, logprob in by_sequence.get(sequence, ()) if logprob is not None
                ),
                finished=ended.get(sequence),
            )
            for sequence in dict.fromkeys((*by_sequence, *ended))
        )
