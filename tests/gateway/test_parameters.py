"""The written list covers OpenAI's API, matches its page and is what the parser does."""

import re
import typing
from pathlib import Path

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from gateway import openai_parameters
from gateway.openai_parameters import CHAT, COMPLETIONS, MESSAGE, STREAM_OPTIONS
from gateway.parameters import Treatment
from gateway.schema import ChatRequest, CompletionRequest, Message, StreamOptions

PAGE = Path(__file__).parents[2] / "docs" / "openai-parameters.md"


def names_in(typed_dict) -> set[str]:
    return set(typing.get_type_hints(typed_dict))


def listed(table, *treatments) -> set[str]:
    return {row.name for row in table if not treatments or row.treatment in treatments}


@pytest.mark.parametrize(
    ("table", "official"),
    [
        (CHAT, chat_create_params.CompletionCreateParamsStreaming),
        (COMPLETIONS, completion_create_params.CompletionCreateParamsStreaming),
    ],
)
def test_every_parameter_of_the_stock_client_is_listed(table, official):
    missing = names_in(official) - listed(table)
    assert not missing
    extensions = listed(table) - names_in(official)
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


def test_the_page_is_the_list():
    assert PAGE.read_text() == openai_parameters.render_document(), (
        "run: python -m gateway.openai_parameters > docs/openai-parameters.md"
    )
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(CHAT) + len(COMPLETIONS) + len(MESSAGE) + len(STREAM_OPTIONS)
