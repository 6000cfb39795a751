"""The request model of Anthropic's Messages API, and the chat request that it stands for."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from gateway import anthropic_parameters, parameters
from gateway.errors import ApiError, Reason
from gateway.schema import ChatRequest, EndUser, Message
from gateway.wire import (
    MAX_MESSAGES,
    MAX_STOPS,
    ModelId,
    Stop,
    TextPart,
    Tokens,
    Wire,
    parse,
    selected,
    unsupported,
    wrong,
)

_MESSAGES = parameters.by_name(anthropic_parameters.MESSAGES)
_MESSAGE = parameters.by_name(anthropic_parameters.MESSAGE)
_METADATA = parameters.by_name(anthropic_parameters.METADATA)
_TEXT_BLOCK = parameters.by_name(anthropic_parameters.TEXT_BLOCK)


def _joined(where: str) -> Callable[[Any], str]:
    """A validator: a string, or the text of a list of text blocks; `where` names the list."""

    def text_of(block: Any) -> str:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise wrong("must have blocks that are objects with a type")
        if block["type"] != "text":
            raise unsupported("may only have blocks of type 'text'")
        text = parameters.select(block, _TEXT_BLOCK, f"{where}[].").get("text")
        if not isinstance(text, str):
            raise wrong("must have text blocks with a string as their text")
        return text

    def join(value: Any) -> str:
        if isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise wrong("must be a string or a list of text blocks")
        return "".join(text_of(block) for block in value)

    return join


class TextBlock(TextPart):
    """As a part of OpenAI's messages, but with further members that may ask for nothing."""


class Turn(Wire):
    role: Literal["user", "assistant", "system"]
    content: Annotated[
        str,
        BeforeValidator(
            _joined("messages[].content"), json_schema_input_type=str | list[TextBlock]
        ),
    ]

    @model_validator(mode="before")
    @classmethod
    def _select(cls, value: Any) -> Any:
        return selected(value, _MESSAGE, "messages[].")


class Metadata(Wire):
    user_id: EndUser | None = None

    @model_validator(mode="before")
    @classmethod
    def _select(cls, value: Any) -> Any:
        return selected(value, _METADATA, "metadata.")


class MessagesRequest(Wire):
    """Defaults are Anthropic's."""

    model: ModelId
    max_tokens: Tokens
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: Annotated[
        str, BeforeValidator(_joined("system"), json_schema_input_type=str | list[TextBlock])
    ] = ""
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] = Field(
        default_factory=list
    )
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    metadata: Metadata = Metadata()

    @model_validator(mode="after")
    def _ends_before_the_answer(self) -> "MessagesRequest":
        if self.messages[-1].role == "assistant":
            raise ApiError(
                Reason.UNSUPPORTED_PARAMETER,
                "'messages' may not end with the assistant's: a begun answer is not continued.",
                param="messages",
            )
        return self

    def as_chat(self) -> ChatRequest:
        """The same request in the form that the rest of the server knows."""
        system = [Message(role="system", content=self.system)] if self.system else []
        turns = [Message(role=turn.role, content=turn.content) for turn in self.messages]
        return ChatRequest(
            model=self.model,
            messages=system + turns,
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            stream=self.stream,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            user=self.metadata.user_id,
        )


def parse_messages(body: bytes) -> ChatRequest:
    """Raises ApiError 400 that names the parameter at fault."""
    return parse(MessagesRequest, body, _MESSAGES).as_chat()
