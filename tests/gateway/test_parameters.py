"""The written lists cover the APIs, match their pages and are what the parser does."""

import re
import typing
from importlib import import_module
from pathlib import Path

import pytest

from gateway import anthropic_parameters, openai_parameters
from gateway.anthropic_parameters import MESSAGES, METADATA, TEXT_BLOCK
from gateway.messages_schema import MessagesRequest, Metadata, Turn
from gateway.openai_parameters import CHAT, COMPLETIONS, MESSAGE, STREAM_OPTIONS
from gateway.parameters import Treatment
from gateway.schema import ChatRequest, CompletionRequest, Message, StreamOptions

DOCS = Path(__file__).parents[2] / "docs"


def names_in(module: str, typed_dict: str) -> set[str]:
    """Imported only here: the stock clients' types take seconds."""
    return set(typing.get_type_hints(getattr(import_module(module), typed_dict)))


def listed(table, *treatments) -> set[str]:
    return {row.name for row in table if not treatments or row.treatment in treatments}


@pytest.mark.parametrize(
    ("table", "module"),
    [
        (CHAT, "openai.types.chat.completion_create_params"),
        (COMPLETIONS, "openai.types.completion_create_params"),
    ],
)
def test_every_parameter_of_the_stock_client_is_listed(table, module):
    official = names_in(module, "CompletionCreateParamsStreaming")
    assert not official - listed(table)
    extensions = listed(table) - official
    assert all("Not OpenAI's" in row.note for row in table if row.name in extensions)


@pytest.mark.parametrize(
    ("table", "model"),
    [
        (CHAT, ChatRequest),
        (COMPLETIONS, CompletionRequest),
        (MESSAGE, Message),
        (STREAM_OPTIONS, StreamOptions),
    ],
)
def test_exactly_the_honoured_parameters_reach_the_schema(table, model):
    assert listed(table, Treatment.HONOURED) == set(model.model_fields)
    assert len(listed(table)) == len(table)


@pytest.mark.parametrize(
    ("table", "module", "typed_dict"),
    [
        (MESSAGES, "message_create_params", "MessageCreateParamsStreaming"),
        (anthropic_parameters.MESSAGE, "message_param", "UserMessageParam"),
        (TEXT_BLOCK, "text_block_param", "TextBlockParam"),
    ],
)
def test_every_parameter_of_the_stock_anthropic_client_is_listed(table, module, typed_dict):
    official = names_in(f"anthropic.types.{module}", typed_dict)
    sent_as_headers = {"user_profile_id", "workspace_id"}
    assert official - sent_as_headers <= listed(table)
    # Those that some releases of the client name and others do not.
    more = {"temperature", "top_p", "top_k", "mcp_servers"}
    assert listed(table) - official <= more


@pytest.mark.parametrize(
    ("table", "model"),
    [(MESSAGES, MessagesRequest), (anthropic_parameters.MESSAGE, Turn), (METADATA, Metadata)],
)
def test_exactly_the_honoured_parameters_of_anthropics_reach_the_schema(table, model):
    assert listed(table, Treatment.HONOURED) == set(model.model_fields)
    assert len(listed(table)) == len(table)


@pytest.mark.parametrize(
    ("api", "tables"),
    [
        (openai_parameters, (CHAT, COMPLETIONS, MESSAGE, STREAM_OPTIONS)),
        (
            anthropic_parameters,
            (MESSAGES, anthropic_parameters.MESSAGE, METADATA, TEXT_BLOCK),
        ),
    ],
)
def test_the_page_is_the_list(api, tables):
    name = api.__name__.removeprefix("gateway.")
    page = (DOCS / f"{name.replace('_', '-')}.md").read_text()
    assert page == api.render_document(), (
        f"run: python -m gateway.{name} > docs/{name.replace('_', '-')}.md"
    )
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert len(rows) == sum(len(table) for table in tables)
