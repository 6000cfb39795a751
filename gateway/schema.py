"""The request models of OpenAI's endpoints. Pydantic stops here: below it is plain data."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from gateway import openai_parameters, parameters
from gateway.wire import (
    INT64,
    MAX_MESSAGES,
    MAX_STOPS,
    ModelId,
    Stop,
    TextPart,
    Tokens,
    Wire,
    invalid,
    parse,
    selected,
    unsupported,
    wrong,
)

MAX_CHOICES = 16
MAX_STOP_TOKENS = 64
MAX_BIASES = 300

_CHAT = parameters.by_name(openai_parameters.CHAT)
_COMPLETIONS = parameters.by_name(openai_parameters.COMPLETIONS)
_MESSAGE = parameters.by_name(openai_parameters.MESSAGE)
_STREAM_OPTIONS = parameters.by_name(openai_parameters.STREAM_OPTIONS)


def _stop_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _bias_pairs(value: Any) -> Any:
    """JSON object {token id: bias} to pairs in order of token id."""
    if not isinstance(value, dict):
        raise wrong("must be an object of token ids and biases")
    if len(value) > MAX_BIASES:
        raise wrong(f"must have at most {MAX_BIASES} entries")
    if not all(key.isascii() and key.isdigit() and len(key) < 10 for key in value):
        raise wrong("must have token ids as its keys")
    return tuple(sorted((int(key), bias) for key, bias in value.items()))


def _joined_text(value: Any) -> Any:
    """A string, or the text of a list of text parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise wrong("must be a string or a list of text parts")
    return "".join(_part_text(part) for part in value)


def _part_text(part: Any) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise wrong("must have parts that are objects with a type")
    if part["type"] != "text":
        raise unsupported("may only have parts of type 'text'")
    if set(part) != {"type", "text"} or not isinstance(part["text"], str):
        raise wrong('must have text parts of the form {"type": "text", "text": string}')
    return part["text"]


def _one_prompt(value: Any) -> Any:
    """A string, or a list of token ids; a list of one prompt is that prompt."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise unsupported("may hold one prompt; send one call for each")
        value = value[0]
    if not isinstance(value, str | list):
        raise wrong("must be a string or a list of token ids")
    return value


Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
EndUser = Annotated[str, Field(max_length=512)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


Content = str | Annotated[list[TextPart], Field(min_length=1)]
Stops = Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)]
Prompt = str | list[TokenId] | Annotated[list[str | list[TokenId]], Field(max_length=1)]


class StreamOptions(Wire):
    include_usage: bool = False

    @model_validator(mode="before")
    @classmethod
    def _select(cls, value: Any) -> Any:
        return selected(value, _STREAM_OPTIONS, "stream_options.")


class Message(Wire):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined_text, json_schema_input_type=Content)]

    @model_validator(mode="before")
    @classmethod
    def _select(cls, value: Any) -> Any:
        return selected(value, _MESSAGE, "messages[].")

    def plain(self) -> dict[str, str]:
        """The form chat templates take; they know no `developer`."""
        return {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content,
        }


class GenerationParameters(Wire):
    """What both endpoints share, with OpenAI's defaults."""

    model: ModelId
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Annotated[
        tuple[tuple[TokenId, Bias], ...],
        BeforeValidator(
            _bias_pairs,
            json_schema_input_type=Annotated[dict[str, Bias], Field(max_length=MAX_BIASES)],
        ),
    ] = ()
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    stop: Annotated[Stops, BeforeValidator(_stop_list, json_schema_input_type=Stop | Stops)] = (
        Field(default_factory=list)
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)] = (
        Field(default_factory=list)
    )
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] = 0
    ignore_eos: bool = False
    max_tokens: Tokens | None = None
    user: EndUser | None = None

    @property
    def output_limit(self) -> int | None:
        """Output tokens asked for, for each choice; None leaves it to the server."""
        return self.max_tokens

    @property
    def end_user(self) -> str | None:
        """Whom the tenant makes the call for, in its own words."""
        return self.user or None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @model_validator(mode="after")
    def _consistent(self) -> "GenerationParameters":
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "is only allowed when 'stream' is true")
        if self.output_limit is not None and self.min_tokens > self.output_limit:
            raise invalid("min_tokens", "must not be larger than max_tokens")
        return self


class ChatRequest(GenerationParameters):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Tokens | None = None
    safety_identifier: EndUser | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def end_user(self) -> str | None:
        return self.safety_identifier or self.user or None

    @property
    def alternatives(self) -> int | None:
        """Top alternatives to report for each token; None reports no probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _consistent_chat(self) -> "ChatRequest":
        if self.max_completion_tokens is not None and self.max_tokens is not None:
            raise invalid("max_tokens", "must not be sent together with max_completion_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "needs 'logprobs' to be true")
        return self


class CompletionRequest(GenerationParameters):
    """`prompt` as a list is not checked token by token: its length has to be known to fit first."""

    prompt: Annotated[str | list[Any], BeforeValidator(_one_prompt, json_schema_input_type=Prompt)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    @property
    def alternatives(self) -> int | None:
        """Top alternatives to report for each token; None reports no probabilities."""
        return self.logprobs


def parse_chat(body: bytes) -> ChatRequest:
    """Raises ApiError 400 that names the parameter at fault."""
    return parse(ChatRequest, body, _CHAT)


def parse_completion(body: bytes) -> CompletionRequest:
    """Raises ApiError 400 that names the parameter at fault."""
    return parse(CompletionRequest, body, _COMPLETIONS)
