"""`POST /v1/completions`: its requests and its answers."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from engine.core.plan import IntArray
from gateway.choices import Delta, characters
from gateway.errors import ApiError, Reason
from gateway.openai_answer import OpenAIWriter, ending
from gateway.schema import CompletionRequest, parse_completion
from gateway.shape import Prepared
from gateway.state import ServedModel
from telemetry import semconv


class CompletionShape:
    """Implements `gateway.shape.Shape` and `gateway.openai_answer.ChoiceSpelling`."""

    operation: ClassVar[str] = semconv.TEXT_COMPLETION
    id_prefix: ClassVar[str] = "cmpl-"
    whole_object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"
    default_max_tokens: ClassVar[int | None] = 16

    def parse(self, body: bytes) -> CompletionRequest:
        return parse_completion(body)

    def tokens(
        self,
        request: CompletionRequest,
        model: ServedModel,
        owner: str,  # noqa: ARG002  # a prompt has no turns
    ) -> IntArray:
        if isinstance(request.prompt, str):
            return np.array(model.codec.encode(request.prompt, add_special=True), np.int32)
        return np.array(_checked(request.prompt, model), np.int32)

    def writer(self, prepared: Prepared, answer_id: str, created: int) -> OpenAIWriter:
        return OpenAIWriter(self, prepared, answer_id, created)

    def whole(self, model: ServedModel, deltas: Sequence[Delta]) -> dict[str, object]:
        return {
            "index": deltas[0].index,
            "text": "".join(delta.text for delta in deltas),
            "logprobs": _logprobs(model, deltas),
            **ending(deltas[-1]),
        }

    def chunk(self, model: ServedModel, delta: Delta) -> dict[str, object]:
        return self.whole(model, (delta,))


def _checked(tokens: list[object], model: ServedModel) -> list[int]:
    """Token ids of the caller's; too many are refused before each is looked at."""
    if len(tokens) >= model.context:
        raise ApiError(
            Reason.CONTEXT_LENGTH,
            f"The model's context is {model.context} tokens; the prompt has {len(tokens)} tokens.",
            param="prompt",
            facts={"context_tokens": model.context, "prompt_tokens": len(tokens)},
        )
    checked = [token for token in tokens if type(token) is int]
    highest = model.codec.vocab_size - 1
    if len(checked) < len(tokens) or not all(0 <= token <= highest for token in checked):
        raise ApiError(
            Reason.INVALID_VALUE,
            f"'prompt' must be a string or a list of token ids from 0 to {highest}.",
            param="prompt",
        )
    return checked


def _logprobs(model: ServedModel, deltas: Sequence[Delta]) -> dict[str, object] | None:
    """OpenAI's older form: lists in parallel. Offsets count characters of the choice's text."""
    if not any(delta.logprobs for delta in deltas):
        return None
    spell = model.codec.token_text
    tokens, values, tops, offsets = [], [], [], []
    for delta in deltas:
        offset = delta.offset
        for token, logprob in zip(delta.tokens, delta.logprobs, strict=True):
            tokens.append(spell(token))
            values.append(logprob.logprob)
            tops.append({spell(other): value for other, value in logprob.top})
            offsets.append(offset)
            offset += characters(model.codec, token)
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }
