"""`POST /v1/messages`: the requests and answers of Anthropic's Messages API."""

from collections.abc import Sequence
from typing import ClassVar

from engine.core.plan import IntArray
from gateway.choices import Delta, Usage
from gateway.messages_schema import parse_messages
from gateway.schema import ChatRequest
from gateway.shape import Prepared, Value
from gateway.state import ServedModel
from telemetry import semconv

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class MessagesShape:
    """Implements `gateway.shape.Shape`."""

    operation: ClassVar[str] = semconv.CHAT
    id_prefix: ClassVar[str] = "msg_"
    default_max_tokens: ClassVar[int | None] = None  # every request says it

    def parse(self, body: bytes) -> ChatRequest:
        return parse_messages(body)

    def tokens(self, request: ChatRequest, model: ServedModel, owner: str) -> IntArray:
        return model.codec.encode_chat([message.plain() for message in request.messages], owner)

    def writer(
        self,
        prepared: Prepared,
        answer_id: str,
        created: int,  # noqa: ARG002  # Anthropic's answers do not say it
    ) -> "MessagesWriter":
        return MessagesWriter(prepared, answer_id)


class MessagesWriter:
    """Implements `gateway.shape.Writer`. There is one choice, in one block of text."""

    def __init__(self, prepared: Prepared, answer_id: str) -> None:
        self._model = prepared.model.id
        self._prompt = len(prepared.prompt)
        self._id = answer_id

    def whole(self, choices: Sequence[Sequence[Delta]], usage: Usage) -> Value:
        (deltas,) = choices
        text = "".join(delta.text for delta in deltas)
        return {
            **self._message([{"type": "text", "text": text}]),
            **_stop(deltas[-1]),
            "usage": self.usage(usage),
        }

    def opening(self) -> Sequence[Value]:
        """All of the prompt counts as computed: what is cached of it is known at the end."""
        message = {
            **self._message([]),
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self.usage(Usage(self._prompt, cached=0, output=0)),
        }
        block = {"type": "text", "text": ""}
        return (
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "ping"},
        )

    def news(self, deltas: Sequence[Delta]) -> list[Value]:
        return [
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": delta.text},
            }
            for delta in deltas
            if delta.text
        ]

    def closing(self, deltas: Sequence[Delta], usage: Usage) -> list[Value]:
        return [
            *self.news(deltas),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": _stop(deltas[-1]), "usage": self.usage(usage)},
            {"type": "message_stop"},
        ]

    def usage(self, usage: Usage) -> Value:
        return {
            "input_tokens": usage.prompt - usage.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached,
            "output_tokens": usage.output,
        }

    def _message(self, content: Sequence[Value]) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
        }


def _stop(last: Delta) -> dict[str, object]:
    """Why it ended. A stop sequence is told apart from the model's own end."""
    assert last.finish_reason is not None
    found = last.stop_string
    reason = _STOP_REASONS[last.finish_reason] if found is None else "stop_sequence"
    partial = {"partial": True} if last.partial else {}
    return {"stop_reason": reason, "stop_sequence": found, **partial}
