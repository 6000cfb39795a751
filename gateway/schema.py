"""The wire's request models. Pydantic stops here: everything below works on plain data."""

from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from gateway import parameters
from gateway.errors import ApiError, Reason

MAX_CHOICES = 16
MAX_MESSAGES = 2048
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_STOP_TOKENS = 64
MAX_BIASES = 300
INT64 = 2**63

_CHAT = parameters.by_name(parameters.CHAT)
_COMPLETIONS = parameters.by_name(parameters.COMPLETIONS)
_MESSAGE = parameters.by_name(parameters.MESSAGE)
_STREAM_OPTIONS = parameters.by_name(parameters.STREAM_OPTIONS)


def _wrong(problem: str) -> PydanticCustomError:
    # Passed as a value, so that braces in it are not read as a template.
    return PydanticCustomError("wrong", "{problem}", {"problem": problem})


def _stop_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _bias_pairs(value: Any) -> Any:
    """JSON object {token id: bias} to pairs in order of token id."""
    if not isinstance(value, dict):
        raise _wrong("must be an object of token ids and biases")
    if len(value) > MAX_BIASES:
        raise _wrong(f"must have at most {MAX_BIASES} entries")
    if not all(key.isascii() and key.isdigit() and len(key) < 10 for key in value):
        raise _wrong("must have token ids as its keys")
    return tuple(sorted((int(key), bias) for key, bias in value.items()))


def _joined_text(value: Any) -> Any:
    """A string, or the text of a list of text parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise _wrong("must be a string or a list of text parts")
    return "".join(_part_text(part) for part in value)


def _part_text(part: Any) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise _wrong("must have parts that are objects with a type")
    if part["type"] != "text":
        raise PydanticCustomError("unsupported", "may only have parts of type 'text'")
    if set(part) != {"type", "text"} or not isinstance(part["text"], str):
        raise _wrong('must have text parts of the form {"type": "text", "text": string}')
    return part["text"]


def _one_prompt(value: Any) -> Any:
    """A string, or a list of token ids; a list of one prompt is that prompt."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise PydanticCustomError("unsupported", "may hold one prompt; send one call for each")
        value = value[0]
    if not isinstance(value, str | list):
        raise _wrong("must be a string or a list of token ids")
    return value


Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1, lt=INT64)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


class Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class StreamOptions(Wire):
    include_usage: bool = False

    @model_validator(mode="before")
    @classmethod
    def _select(cls, value: Any) -> Any:
        return _selected(value, _STREAM_OPTIONS, "stream_options.")


class Message(Wire):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined_text)]

    @model_validator(mode="before")
    @classmethod
    def _select(cls, value: Any) -> Any:
        return _selected(value, _MESSAGE, "messages[].")

    def plain(self) -> dict[str, str]:
        """The form chat templates take; they know no `developer`."""
        return {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content,
        }


class GenerationParameters(Wire):
    """What both endpoints share. Defaults are OpenAI's."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
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
    logit_bias: Annotated[tuple[tuple[TokenId, Bias], ...], BeforeValidator(_bias_pairs)] = ()
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    stop: Annotated[
        list[Stop], Field(max_length=MAX_STOPS, fail_fast=True), BeforeValidator(_stop_list)
    ] = []
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)] = []
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] = 0
    ignore_eos: bool = False
    max_tokens: Tokens | None = None

    @property
    def output_limit(self) -> int | None:
        """Output tokens asked for, for each choice; None leaves it to the server."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @model_validator(mode="after")
    def _consistent(self) -> "GenerationParameters":
        if self.stream_options is not None and not self.stream:
            raise _invalid("stream_options", "is only allowed when 'stream' is true")
        if self.output_limit is not None and self.min_tokens > self.output_limit:
            raise _invalid("min_tokens", "must not be larger than max_tokens")
        return self


class ChatRequest(GenerationParameters):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """Top alternatives to report for each token; None reports no probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _consistent_chat(self) -> "ChatRequest":
        if self.max_completion_tokens is not None and self.max_tokens is not None:
            raise _invalid("max_tokens", "must not be sent together with max_completion_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise _invalid("top_logprobs", "needs 'logprobs' to be true")
        return self


class CompletionRequest(GenerationParameters):
    """`prompt` as a list is not checked token by token: its length has to be known to fit first."""

    prompt: Annotated[str | list[Any], BeforeValidator(_one_prompt)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    @property
    def alternatives(self) -> int | None:
        """Top alternatives to report for each token; None reports no probabilities."""
        return self.logprobs


RequestT = TypeVar("RequestT", ChatRequest, CompletionRequest)


def parse_chat(body: bytes) -> ChatRequest:
    """Raises ApiError 400 that names the parameter at fault."""
    return _parse(ChatRequest, body, _CHAT)


def parse_completion(body: bytes) -> CompletionRequest:
    """Raises ApiError 400 that names the parameter at fault."""
    return _parse(CompletionRequest, body, _COMPLETIONS)


def _parse(model: type[RequestT], body: bytes, known: parameters.Known) -> RequestT:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(Reason.INVALID_JSON, f"The body is not valid JSON: {error.msg}.") from None
    if not isinstance(value, dict):
        raise ApiError(Reason.INVALID_JSON, "The body must be a JSON object.")
    try:
        return model.model_validate(parameters.select(value, known))
    except ValidationError as error:
        raise _refusal(error) from None


def _selected(value: Any, known: parameters.Known, where: str) -> Any:
    return parameters.select(value, known, where) if isinstance(value, dict) else value


def _invalid(param: str, problem: str) -> ApiError:
    return ApiError(Reason.INVALID_VALUE, f"{param!r} {problem}.", param=param)


_PROBLEMS = {"missing": "is required", "model_type": "must be an object"}


def _refusal(error: ValidationError) -> ApiError:
    """The first fault, without the value: it may be a secret or a megabyte."""
    fault = error.errors(include_url=False, include_input=False)[0]
    path = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]
    ).lstrip(".")
    problem = _PROBLEMS.get(fault["type"], fault["msg"].replace("Input should", "should"))
    unsupported = fault["type"] == "unsupported"
    return ApiError(
        Reason.UNSUPPORTED_PARAMETER if unsupported else Reason.INVALID_VALUE,
        f"{path!r} {problem[0].lower()}{problem[1:]}.",
        param=path,
    )
