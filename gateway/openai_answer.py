"""The envelopes of OpenAI's answers, which its two endpoints share."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from gateway.choices import Delta, Usage
from gateway.shape import Prepared, Value
from gateway.state import ServedModel


def spell_usage(usage: Usage) -> Value:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def ending(last: Delta) -> dict[str, object]:
    """How a choice ended, or that it goes on. `partial` is ours, and there where it is true."""
    partial = {"partial": True} if last.partial else {}
    return {"finish_reason": last.finish_reason, **partial}


class ChoiceSpelling(Protocol):
    """What the endpoints do differently: the choices in the envelope."""

    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def whole(self, model: ServedModel, deltas: Sequence[Delta]) -> Value:
        """A complete choice, from all its deltas, for an answer in one piece."""
        ...

    def chunk(self, model: ServedModel, delta: Delta) -> Value:
        """What is new of a choice, for a stream."""
        ...


class OpenAIWriter:
    """Implements `gateway.shape.Writer`."""

    def __init__(
        self, spelling: ChoiceSpelling, prepared: Prepared, answer_id: str, created: int
    ) -> None:
        self._spelling = spelling
        self._model = prepared.model
        self._include_usage = prepared.request.include_usage
        self._id = answer_id
        self._created = created

    def whole(self, choices: Sequence[Sequence[Delta]], usage: Usage) -> Value:
        spelled = [self._spelling.whole(self._model, deltas) for deltas in choices]
        answer = self._envelope(self._spelling.whole_object, spelled)
        return {**answer, "usage": self.usage(usage)}

    def opening(self) -> Sequence[Value]:
        return ()

    def news(self, deltas: Sequence[Delta]) -> list[Value]:
        return [
            self._chunk([self._spelling.chunk(self._model, delta)])
            for delta in deltas
            if delta.worth_sending
        ]

    def closing(self, deltas: Sequence[Delta], usage: Usage) -> list[Value]:
        last = self.news(deltas)
        if self._include_usage:
            last.append({**self._chunk([]), "usage": self.usage(usage)})
        return last

    def usage(self, usage: Usage) -> Value:
        return spell_usage(usage)

    def _chunk(self, choices: Sequence[Value]) -> dict[str, object]:
        chunk = self._envelope(self._spelling.chunk_object, choices)
        if self._include_usage:
            chunk["usage"] = None
        return chunk

    def _envelope(self, kind: str, choices: Sequence[Value]) -> dict[str, object]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model.id,
            "choices": choices,
        }
