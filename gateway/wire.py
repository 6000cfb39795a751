"""What the wire's request models share: the base, the bounds, and refusals that name the fault."""

from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from gateway import parameters
from gateway.errors import ApiError, Reason

MAX_MESSAGES = 2048
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
INT64 = 2**63

Tokens = Annotated[int, Field(ge=1, lt=INT64)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
ModelId = Annotated[str, Field(min_length=1, max_length=256)]


class Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TextPart(Wire):
    """The only kind of content: what lists of it are joined to is a string."""

    type: Literal["text"]
    text: str


WireT = TypeVar("WireT", bound=Wire)


def parse(model: type[WireT], body: bytes, known: parameters.Known) -> WireT:
    """`body` as a `model`. Raises ApiError 400 that names the parameter at fault."""
    return validated(model, parameters.select(json_object(body), known))


def json_object(body: bytes) -> dict[str, Any]:
    """Raises ApiError 400."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(Reason.INVALID_JSON, f"The body is not valid JSON: {error.msg}.") from None
    if not isinstance(value, dict):
        raise ApiError(Reason.INVALID_JSON, "The body must be a JSON object.")
    return value


def validated(model: type[WireT], value: dict[str, Any]) -> WireT:
    """Raises ApiError 400 that names the parameter at fault."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _refusal(error) from None


def wrong(problem: str) -> PydanticCustomError:
    """For a validator to raise: the parameter has a value that is not allowed."""
    # Passed as a value, so that braces in it are not read as a template.
    return PydanticCustomError("wrong", "{problem}", {"problem": problem})


def unsupported(problem: str) -> PydanticCustomError:
    """For a validator to raise: this is not served."""
    return PydanticCustomError("unsupported", "{problem}", {"problem": problem})


def invalid(param: str, problem: str) -> ApiError:
    """The refusal of a parameter, for whoever knows its name."""
    return ApiError(Reason.INVALID_VALUE, f"{param!r} {problem}.", param=param)


def selected(value: Any, known: parameters.Known, where: str) -> Any:
    """The honoured members of an object at `where`; anything else is left to its model."""
    return parameters.select(value, known, where) if isinstance(value, dict) else value


_PROBLEMS = {"missing": "is required", "model_type": "must be an object"}


def _refusal(error: ValidationError) -> ApiError:
    """The first fault, without the value: it may be a secret or a megabyte."""
    fault = error.errors(include_url=False, include_input=False)[0]
    path = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]
    ).lstrip(".")
    if fault["type"] == "extra_forbidden":
        path = path[: parameters.MAX_NAME_ECHOED]
        raise ApiError(Reason.UNKNOWN_PARAMETER, f"There is no parameter {path!r}.", param=path)
    problem = _PROBLEMS.get(fault["type"], fault["msg"].replace("Input should", "should"))
    unsupported = fault["type"] == "unsupported"
    return ApiError(
        Reason.UNSUPPORTED_PARAMETER if unsupported else Reason.INVALID_VALUE,
        f"{path!r} {problem[0].lower()}{problem[1:]}.",
        param=path,
    )
