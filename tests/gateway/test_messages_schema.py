"""Bodies of Anthropic's Messages API: the chat request they stand for, or a 400."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ApiError
from gateway.messages_schema import parse_messages

BODY = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


def parsed(**more):
    return parse_messages(json.dumps({**BODY, **more}).encode())


def test_a_body_is_a_chat_request():
    request = parsed(
        system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
        stop_sequences=["a", "b"],
        temperature=0,
        top_p=0.5,
        top_k=3,
        stream=True,
    )
    assert [message.plain() for message in request.messages] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    assert (request.model, request.output_limit, request.n) == ("m", 5, 1)
    assert (request.stop, request.stream, request.include_usage) == (["a", "b"], True, False)
    assert (request.temperature, request.top_p, request.top_k) == (0, 0.5, 3)


def test_defaults_are_anthropics():
    request = parsed()
    assert [message.role for message in request.messages] == ["user"]
    assert (request.stop, request.stream, request.alternatives) == ([], False, None)
    assert (request.temperature, request.top_p, request.top_k) == (1, 1, 0)


WORDS = st.sampled_from(["text", "user", "assistant", "system", "image", "ephemeral"])
NAMES = st.sampled_from(["type", "text", "role", "content", "cache_control", "citations", "x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
PARAMETERS = st.sampled_from(
    [
        "messages",
        "system",
        "max_tokens",
        "stop_sequences",
        "temperature",
        "top_k",
        "stream",
        "tools",
    ]
)


@given(st.dictionaries(PARAMETERS, VALUES, max_size=3))
def test_any_json_is_a_request_or_a_400(more):
    status = None
    try:
        request = parsed(**more)
    except ApiError as error:
        status = error.row.status
    assert status == 400 or request.output_limit > 0


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [5] * 1_000_000},
        {"stop_sequences": ["x"] * 500_000},
        {"x" * 1_000_000: 1},
    ],
)
def test_hostile_sizes_are_refused_briefly(more):
    with pytest.raises(ApiError) as caught:
        parsed(**more)
    assert len(caught.value.message) < 200
