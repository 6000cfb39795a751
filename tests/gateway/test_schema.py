"""Request bodies: what passes, and a 400 that names the fault for what does not."""

import json
import time

import pytest

from gateway.errors import ApiError
from gateway.schema import parse_chat, parse_completion

HELLO = [{"role": "user", "content": "hi"}]


def chat(**more):
    return parse_chat(json.dumps({"model": "m", "messages": HELLO, **more}).encode())


def completion(**more):
    return parse_completion(json.dumps({"model": "m", "prompt": "hi", **more}).encode())


def refused(parse, **more) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**more)
    assert caught.value.row.status == 400
    return caught.value


BAD_VALUES = [
    ("max_tokens", 0),
    ("max_tokens", None),
    ("max_tokens", -1),
    ("max_tokens", 10**30),
    ("max_tokens", "5"),
    ("max_tokens", 1.5),
    ("n", 0),
    ("n", 10_000_000),
    ("n", True),
    ("temperature", -0.1),
    ("temperature", 2.5),
    ("temperature", "hot"),
    ("top_p", -0.1),
    ("top_p", 1.01),
    ("top_k", -1),
    ("min_p", 1.5),
    ("repetition_penalty", 0),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {str(token): 1 for token in range(301)}),
    ("logit_bias", [1]),
    ("seed", 2**63),
    ("seed", 0.5),
    ("stop", ["x"] * 5000),
    ("stop", ["ok", ""]),
    ("stop", ""),
    ("stop", "x" * 257),
    ("stop", [1]),
    ("stop_token_ids", list(range(65))),
    ("stop_token_ids", [-1]),
    ("min_tokens", -1),
    ("ignore_eos", 1),
    ("stream", "yes"),
    ("stream_options", 5),
    ("model", ""),
    ("model", None),
    ("model", 5),
]


@pytest.mark.parametrize("parse", [chat, completion])
@pytest.mark.parametrize(("name", "value"), BAD_VALUES, ids=lambda value: repr(value)[:30])
def test_bad_values_are_refused_by_name(parse, name, value):
    error = refused(parse, **{name: value})
    assert error.param.startswith(name)
    assert name in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("messages", []),
        ("messages", "hi"),
        ("messages", [5]),
        ("messages", [{"role": "alien", "content": "x"}]),
        ("messages", [{"role": "tool", "content": "x", "tool_call_id": "1"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": None}]),
        ("messages", [{"role": "user", "content": []}]),
        ("messages", [{"role": "user", "content": "x", "zap": 1}]),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": 1}]}]),
        ("messages", HELLO * 2049),
        ("top_logprobs", 1_000_000_000),
        ("top_logprobs", 3),
        ("logprobs", 3),
        ("max_completion_tokens", 0),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_chat_values_are_refused_by_name(name, value):
    assert refused(chat, **{name: value}).param.startswith(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("prompt", ["a", "b"]), ("prompt", 5), ("prompt", [[1], [2]]), ("logprobs", 6)],
)
def test_bad_completion_values_are_refused_by_name(name, value):
    assert refused(completion, **{name: value}).param == name


@pytest.mark.parametrize(
    ("parse", "name", "value"),
    [
        (chat, "tools", [{"type": "function"}]),
        (chat, "response_format", {"type": "json_object"}),
        (chat, "store", True),
        (chat, "audio", {}),
        (completion, "best_of", 2),
        (completion, "best_of", True),
        (completion, "echo", True),
        (completion, "suffix", "x"),
    ],
)
def test_unsupported_parameters_are_refused_by_name(parse, name, value):
    error = refused(parse, **{name: value})
    assert (error.param, error.row.code) == (name, "unsupported_parameter")


def test_images_are_refused_by_name():
    parts = [{"type": "image_url", "image_url": {"url": "x"}}]
    error = refused(chat, messages=[{"role": "user", "content": parts}])
    assert (error.param, error.row.code) == ("messages[0].content", "unsupported_parameter")


def test_unknown_parameters_are_refused_by_name_and_not_echoed_at_length():
    error = refused(chat, **{"y" * 10_000: 1})
    assert error.row.code == "unknown_parameter"
    assert error.param == "y" * 64
    assert len(error.message) < 200


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"extra": 1}}, "stream_options.extra"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 4}, "max_tokens"),
        ({"min_tokens": 9, "max_completion_tokens": 8}, "min_tokens"),
    ],
)
def test_combinations_that_contradict(more, param):
    assert refused(chat, **more).param == param


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"nul", b"{", b'{"a": NaN}', b'{"model": "\xff"}', b"[" * 100_000, b'"\\ud800"'],
)
def test_what_is_not_a_json_object_is_refused(body):
    with pytest.raises(ApiError) as caught:
        parse_chat(body)
    assert (caught.value.row.status, caught.value.row.code) == (400, "invalid_json")


def test_defaults_are_openais():
    request = chat()
    assert (request.temperature, request.top_p, request.n, request.stream) == (1.0, 1.0, 1, False)
    assert (request.output_limit, request.alternatives, request.include_usage) == (
        None,
        None,
        False,
    )


def test_neutral_and_ignored_values_pass():
    request = chat(
        user="u",
        metadata={"a": "b"},
        store=False,
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        temperature=None,
        stop=None,
        stream_options=None,
    )
    assert request.temperature == 1.0
    assert request.stop == []


def test_messages_in_parts_and_the_developer_role():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(
        messages=[
            {"role": "developer", "content": "rules"},
            {"role": "user", "content": parts, "name": "ann"},
            {"role": "assistant", "content": "c", "tool_calls": None, "refusal": None},
        ]
    )
    assert [message.plain() for message in request.messages] == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c"},
    ]


def test_limits_and_probabilities():
    assert chat(max_completion_tokens=7).output_limit == 7
    assert chat(max_tokens=8).output_limit == 8
    assert chat(logprobs=True).alternatives == 0
    assert chat(logprobs=True, top_logprobs=5).alternatives == 5
    assert completion(logprobs=0).alternatives == 0
    assert completion().alternatives is None


def test_stream_options():
    assert not chat(stream=True, stream_options={}).include_usage
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage


@pytest.mark.parametrize(
    ("prompt", "expected"), [("x", "x"), (["x"], "x"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2])]
)
def test_prompts(prompt, expected):
    assert completion(prompt=prompt).prompt == expected


def test_stop_and_biases_in_canonical_form():
    request = chat(stop="\n", logit_bias={"20": -100, "3": 0.5})
    assert request.stop == ["\n"]
    assert request.logit_bias == ((3, 0.5), (20, -100.0))


@pytest.mark.parametrize(
    "more",
    [
        {"stop": ["x"] * 200_000},
        {"stop_token_ids": ["x"] * 200_000},
        {"messages": [5] * 200_000},
        {"logit_bias": {str(number): "x" for number in range(100_000)}},
        {"n": 10**9},
        {"top_logprobs": 10**9, "logprobs": True},
    ],
    ids=lambda more: next(iter(more)),
)
def test_hostile_sizes_are_refused_quickly(more):
    body = json.dumps({"model": "m", "messages": HELLO, **more}).encode()
    began = time.perf_counter()
    with pytest.raises(ApiError):
        parse_chat(body)
    assert time.perf_counter() - began < 0.25
