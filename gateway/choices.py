"""The choices of one call while they arrive: text, probabilities, ends and usage.

Shared by all endpoints, streaming or not. The work for each token is constant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.core.outputs import Finished, Output
from engine.core.plan import TokenLogprob
from engine.runtime.text.codec import TextCodec
from engine.runtime.text.stream import TextStream
from gateway.outcomes import FINISH_REASONS
from telemetry.events import Cause


class Finishable(Protocol):
    """The part of a generation that a found stop string needs."""

    def finish(self, sequence: int, output_tokens: int) -> None: ...


@dataclass(slots=True)
class Delta:
    """What is new of one choice: `tokens` and `logprobs` run in parallel, one for each token shown.

    `offset` is where the first of these tokens starts in the choice's text, in characters.
    """

    index: int
    first: bool
    offset: int
    text: str = ""
    tokens: Sequence[int] = ()
    logprobs: Sequence[TokenLogprob] = ()
    finish_reason: str | None = None
    stop_string: str | None = None  # the one that was found, with the end
    partial: bool = False  # it ended at its deadline, with the end

    @property
    def worth_sending(self) -> bool:
        return bool(self.text or self.logprobs or self.finish_reason or self.first)


@dataclass(frozen=True, slots=True)
class Usage:
    """In tokens. The prompt counts once, whatever the number of choices."""

    prompt: int
    cached: int  # of the prompt
    output: int


def characters(codec: TextCodec, token: int) -> int:
    """How many characters start in the bytes of `token`: all but UTF-8's continuation bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in codec.token_bytes(token))


class Choice:
    """One choice. `tokens` counts those that arrived, shown or not."""

    def __init__(
        self, index: int, codec: TextCodec, stop: Sequence[str], hidden: frozenset[int]
    ) -> None:
        self.index = index
        self.finished: Finished | None = None
        self.tokens = 0
        self._codec = codec
        self._text = TextStream(codec, stop, hidden)
        self._hidden = hidden
        self._offset = 0
        self._began = False

    @property
    def stopped_at(self) -> int | None:
        """The number of tokens that count, once a stop string was found."""
        return self._text.stopped_at

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's word for how it ended; None while it runs and when it failed."""
        if self.finished is None:
            return None
        if self.stopped_at is not None:
            return "stop"
        return FINISH_REASONS.get(self.finished.cause)

    @property
    def failed(self) -> bool:
        """Whether it ended without being complete."""
        return self.finished is not None and self.finish_reason is None

    def take(self, output: Output) -> Delta:
        """What is new, as it can be shown now."""
        delta = Delta(self.index, not self._began, self._offset)
        if self.stopped_at is None:
            delta.text = self._text.push(output.tokens)
            self._keep_logprobs(delta, output)
        self.tokens += len(output.tokens)
        self.finished = output.finished
        if self.finish_reason is not None:
            delta.text += self._text.flush()
            delta.finish_reason = self.finish_reason
            delta.stop_string = self._text.stopped_by
            delta.partial = self.finished is not None and self._cut_short(self.finished)
        self._began = self._began or bool(output.tokens) or delta.finish_reason is not None
        return delta

    def _cut_short(self, end: Finished) -> bool:
        return self.stopped_at is None and end.cause is Cause.PARTIAL

    def _keep_logprobs(self, delta: Delta, output: Output) -> None:
        if not output.logprobs:
            return
        kept = len(output.tokens) if self.stopped_at is None else self.stopped_at - self.tokens
        shown = [
            pair
            for pair in zip(output.tokens[:kept], output.logprobs, strict=False)
            if pair[0] not in self._hidden
        ]
        delta.tokens = [token for token, _ in shown]
        delta.logprobs = [logprob for _, logprob in shown]
        self._offset += sum(characters(self._codec, token) for token in delta.tokens)


class Choices:
    """All choices of one generation, in order of index."""

    def __init__(
        self,
        generation: Finishable,
        sequences: Sequence[int],
        codec: TextCodec,
        stop: Sequence[str],
        hidden: frozenset[int],
    ) -> None:
        self._generation = generation
        self._by_sequence = {
            sequence: Choice(index, codec, stop, hidden) for index, sequence in enumerate(sequences)
        }

    @property
    def done(self) -> bool:
        return all(choice.finished is not None for choice in self._by_sequence.values())

    @property
    def failure(self) -> Finished | None:
        """The end of the first choice that failed."""
        return next(
            (choice.finished for choice in self._by_sequence.values() if choice.failed), None
        )

    def absorb(self, outputs: Sequence[Output]) -> list[Delta]:
        """One delta for each output; stop strings found are told to the engine."""
        return [self._take(output) for output in outputs]

    def _take(self, output: Output) -> Delta:
        choice = self._by_sequence[output.sequence]
        was_stopped = choice.stopped_at is not None
        delta = choice.take(output)
        if choice.stopped_at is not None and not was_stopped and choice.finished is None:
            self._generation.finish(output.sequence, choice.stopped_at)
        return delta

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """Those of the choices that are complete, in order of index."""
        reasons = (choice.finish_reason for choice in self._by_sequence.values())
        return tuple(reason for reason in reasons if reason is not None)

    def usage(self) -> Usage:
        """So far; complete once `done`."""
        first = next(iter(self._by_sequence.values())).finished
        return Usage(
            prompt=first.prompt_tokens if first else 0,
            cached=first.cached_tokens if first else 0,
            output=sum(end.output_tokens for end in self._ends),
        )

    def usage_of_failure(self) -> Usage:
        """What is billed of a call without an answer: of the prompt, what was processed."""
        processed = max(end.processed_tokens for end in self._ends)
        cached = max(end.cached_tokens for end in self._ends)
        output = sum(end.output_tokens for end in self._ends)
        return Usage(processed, min(processed, cached), output)

    @property
    def _ends(self) -> list[Finished]:
        ends = (choice.finished for choice in self._by_sequence.values())
        return [end for end in ends if end]
