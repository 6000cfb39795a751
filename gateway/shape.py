"""What an endpoint is made of: how it reads its requests and how it writes its answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from engine.core.plan import IntArray, Sampling
from gateway.choices import Delta, Usage
from gateway.schema import ChatRequest, CompletionRequest
from gateway.state import ServedModel

Request = ChatRequest | CompletionRequest
RequestT = TypeVar("RequestT", ChatRequest, CompletionRequest)
Value = Mapping[str, object]  # JSON-ready


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked and tokenised request. `prompt` is int32 of shape [tokens]."""

    request: Request
    model: ServedModel
    prompt: IntArray
    max_tokens: int
    sampling: Sampling


class Writer(Protocol):
    """Spells one answer, in one piece or as the events of a stream."""

    def whole(self, choices: Sequence[Sequence[Delta]], usage: Usage) -> Value:
        """From all deltas of each choice."""
        ...

    def opening(self) -> Sequence[Value]:
        """What precedes the first output."""
        ...

    def news(self, deltas: Sequence[Delta]) -> Sequence[Value]: ...

    def closing(self, deltas: Sequence[Delta], usage: Usage) -> Sequence[Value]:
        """The last deltas and what ends a complete stream."""
        ...

    def usage(self, usage: Usage) -> Value: ...


class Shape(Protocol[RequestT]):
    """How one endpoint reads its requests and writes its answers."""

    operation: ClassVar[str]  # its name in traces
    id_prefix: ClassVar[str]
    default_max_tokens: ClassVar[int | None]

    def parse(self, body: bytes) -> RequestT:
        """Raises ApiError 400."""
        ...

    def tokens(self, request: RequestT, model: ServedModel, owner: str) -> IntArray:
        """The prompt's token ids, int32 of shape [tokens]. Raises ApiError 400, TextError.

        What `owner` sent before may be remembered for it.
        """
        ...

    def writer(self, prepared: Prepared, answer_id: str, created: int) -> Writer:
        """For the answer of that id; `created` is in Unix seconds."""
        ...
