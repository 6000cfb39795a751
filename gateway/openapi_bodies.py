"""The JSON schemas of request bodies, from the models that read them.

A parameter that is ignored or refused is in no model; the written list of its API says what passes.
"""

from collections.abc import Mapping
from typing import Any

from gateway import anthropic_parameters, commits, openai_parameters
from gateway.admin_schema import KeyChanges, NewKey, NewTenant, Rotation, TenantSettings
from gateway.commits import CommitRequest
from gateway.messages_schema import MessagesRequest, TextBlock, Turn
from gateway.parameters import Known, Parameter, Treatment, by_name
from gateway.schema import ChatRequest, CompletionRequest, Message, StreamOptions
from gateway.wire import Wire

Json = dict[str, Any]
REF = "#/components/schemas/"

# Models whose parameters are on a written list.
_LISTED: Mapping[type[Wire], Known] = {
    ChatRequest: by_name(openai_parameters.CHAT),
    CompletionRequest: by_name(openai_parameters.COMPLETIONS),
    Message: by_name(openai_parameters.MESSAGE),
    StreamOptions: by_name(openai_parameters.STREAM_OPTIONS),
    MessagesRequest: by_name(anthropic_parameters.MESSAGES),
    Turn: by_name(anthropic_parameters.MESSAGE),
    TextBlock: by_name(anthropic_parameters.TEXT_BLOCK),
    CommitRequest: commits.PARAMETERS,
}
_BODIES: tuple[type[Wire], ...] = (
    ChatRequest,
    CompletionRequest,
    MessagesRequest,
    CommitRequest,
    NewTenant,
    TenantSettings,
    NewKey,
    KeyChanges,
    Rotation,
)


def schemas() -> Json:
    """Every body and what it is made of, by name."""
    found: Json = {}
    for model in _BODIES:
        schema = model.model_json_schema(ref_template=REF + "{model}")
        found |= schema.pop("$defs", {})
        found[model.__name__] = schema
    for model, known in _LISTED.items():
        _complete(found[model.__name__], known)
    return found


def _complete(schema: Json, known: Known) -> None:
    """Give every listed parameter its note, and those that no model has a schema."""
    properties = schema["properties"]
    for name, parameter in known.items():
        accepted = _accepted(parameter, properties.get(name))
        properties[name] = {**accepted, "description": parameter.note}


def _accepted(parameter: Parameter, schema: Json | None) -> Json:
    if parameter.treatment is Treatment.REFUSED:
        return {"enum": [None, *parameter.neutral]}
    if parameter.treatment is Treatment.IGNORED:
        return {}
    assert schema is not None
    if not parameter.nullable or {"type": "null"} in schema.get("anyOf", ()):
        return schema
    return {"anyOf": [schema, {"type": "null"}]}
