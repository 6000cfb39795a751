"""`POST /v1/chat/completions`: its requests and its answers."""

from collections.abc import Sequence
from typing import ClassVar

from engine.core.plan import IntArray, TokenLogprob
from engine.runtime.text.codec import TextCodec
from gateway.choices import Delta
from gateway.openai_answer import OpenAIWriter, ending
from gateway.schema import ChatRequest, parse_chat
from gateway.shape import Prepared
from gateway.state import ServedModel
from telemetry import semconv


class ChatShape:
    """Implements `gateway.shape.Shape` and `gateway.openai_answer.ChoiceSpelling`."""

    operation: ClassVar[str] = semconv.CHAT
    id_prefix: ClassVar[str] = "chatcmpl-"
    whole_object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"
    default_max_tokens: ClassVar[int | None] = None  # as much as the context holds, as OpenAI's

    def parse(self, body: bytes) -> ChatRequest:
        return parse_chat(body)

    def tokens(self, request: ChatRequest, model: ServedModel, owner: str) -> IntArray:
        return model.codec.encode_chat([message.plain() for message in request.messages], owner)

    def writer(self, prepared: Prepared, answer_id: str, created: int) -> OpenAIWriter:
        return OpenAIWriter(self, prepared, answer_id, created)

    def whole(self, model: ServedModel, deltas: Sequence[Delta]) -> dict[str, object]:
        text = "".join(delta.text for delta in deltas)
        return {
            "index": deltas[0].index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": _logprobs(model.codec, deltas),
            **ending(deltas[-1]),
        }

    def chunk(self, model: ServedModel, delta: Delta) -> dict[str, object]:
        content: dict[str, object] = {}
        if delta.first:
            content = {"role": "assistant", "content": delta.text}
        elif delta.text:
            content = {"content": delta.text}
        return {
            "index": delta.index,
            "delta": content,
            "logprobs": _logprobs(model.codec, (delta,)),
            **ending(delta),
        }


def _logprobs(codec: TextCodec, deltas: Sequence[Delta]) -> dict[str, object] | None:
    entries = [
        _entry(codec, token, logprob)
        for delta in deltas
        for token, logprob in zip(delta.tokens, delta.logprobs, strict=True)
    ]
    return {"content": entries, "refusal": None} if entries else None


def _entry(codec: TextCodec, token: int, logprob: TokenLogprob) -> dict[str, object]:
    return {
        **_token(codec, token, logprob.logprob),
        "top_logprobs": [_token(codec, other, value) for other, value in logprob.top],
    }


def _token(codec: TextCodec, token: int, logprob: float) -> dict[str, object]:
    return {
        "token": codec.token_text(token),
        "logprob": logprob,
        "bytes": list(codec.token_bytes(token)),
    }
