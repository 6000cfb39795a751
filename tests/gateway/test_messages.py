"""Answers of Anthropic's Messages API, over a real socket and through its stock client."""

import pytest

from telemetry import semconv
from tests.gateway.conftest import TEXT
from tests.gateway.live import HELLO, MODEL, eventually
from tests.gateway.messages import BODY, PATH, ask, events, text_of

pytestmark = pytest.mark.model  # the text is that of the default model


# -- answers ----------------------------------------------------------------------------------


def test_a_whole_answer(anthropic_client, server):
    response = ask(anthropic_client)
    assert response.status_code == 200
    body = response.json()
    assert body.pop("id").startswith("msg_")
    usage = body.pop("usage")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }
    prompt = len(server.codec.encode_chat(HELLO))
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == prompt
    assert usage["cache_creation_input_tokens"] == 0
    # the end token counts
    assert usage["output_tokens"] == len(server.codec.encode(TEXT, add_special=False)) + 1


def test_a_stream_says_the_same_in_anthropics_order(anthropic_client, server):
    ask(anthropic_client)  # so that both find the same prefix in the cache
    whole = ask(anthropic_client).json()
    stream = events(ask(anthropic_client, stream=True))
    kinds = [event["type"] for event in stream]
    assert kinds[:4] == ["message_start", "content_block_start", "ping", "content_block_delta"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    message = stream[0]["message"]
    assert message.pop("id").startswith("msg_")
    assert message.pop("usage") == {
        "input_tokens": len(server.codec.encode_chat(HELLO)),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
    assert stream[1]["content_block"] == {"type": "text", "text": ""}
    assert {event["index"] for event in stream if "index" in event} == {0}
    assert text_of(stream) == TEXT
    assert "\ufffd" not in text_of(stream)
    assert stream[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert stream[-2]["usage"] == whole["usage"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_cached_is_counted_apart(anthropic_client, stream):
    messages = [{"role": "user", "content": f"a long and winding question {stream} " * 20}]

    def usage() -> dict:
        response = ask(anthropic_client, messages=messages, stream=stream)
        return events(response)[-2]["usage"] if stream else response.json()["usage"]

    first, second = usage(), usage()
    prompt = first["input_tokens"] + first["cache_read_input_tokens"]
    cached = (prompt - 1) // 16 * 16  # whole blocks; the last token is always computed
    assert cached > 64 > first["cache_read_input_tokens"]
    assert second["cache_read_input_tokens"] == cached
    assert second["input_tokens"] == prompt - cached


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("more", "text", "reason", "found"),
    [
        (["zzz", "through", "東"], TEXT[: TEXT.index("through")], "stop_sequence", "through"),
        (["京", "東京"], TEXT[: TEXT.index("東")], "stop_sequence", "東京"),
        (["never said"], TEXT, "end_turn", None),
        (2, "The river", "max_tokens", None),
    ],
)
def test_why_it_ended(anthropic_client, stream, more, text, reason, found):
    name = "max_tokens" if isinstance(more, int) else "stop_sequences"
    response = ask(anthropic_client, stream=stream, **{name: more})
    if stream:
        last = events(response)
        said, stop = text_of(last), last[-2]["delta"]
    else:
        stop = response.json()
        said = stop["content"][0]["text"]
    assert (stop["stop_reason"], stop["stop_sequence"]) == (reason, found)
    assert said == text


def test_system_prompts_and_blocks_are_the_same_prompt(anthropic_client, server):
    blocks = [{"type": "text", "text": "rules "}, {"type": "text", "text": "hold"}]
    question = [{"type": "text", "text": "h"}, {"type": "text", "text": "i", "citations": None}]

    def prompt(**more) -> int:
        usage = ask(anthropic_client, **more).json()["usage"]
        return usage["input_tokens"] + usage["cache_read_input_tokens"]

    expected = len(server.codec.encode_chat([{"role": "system", "content": "rules hold"}, *HELLO]))
    assert prompt(system="rules hold") == expected
    assert prompt(system=blocks) == expected
    assert prompt(system=blocks, messages=[{"role": "user", "content": question}]) == expected
    inside = [{"role": "system", "content": "rules hold"}, *HELLO]
    assert prompt(messages=inside) == expected
    assert prompt(system="") == prompt(system=None) == prompt(system=[]) == prompt()


def test_what_is_asked_reaches_the_engine_and_the_trace(anthropic_client, server):
    more = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "metadata": {"user_id": "ann"}}
    headers = {"x-request-id": "traced-message", "x-task-id": "t-9"}
    response = anthropic_client.post(PATH, json={**BODY, **more, "stream": True}, headers=headers)
    events(response)

    def calls() -> list:
        spans = [dict(span.attributes) for span in server.spans.get_finished_spans()]
        mine = [said for said in spans if said.get(semconv.REQUEST) == "traced-message"]
        return [said for said in mine if semconv.OPERATION in said]

    eventually(calls)
    (attributes,) = calls()
    assert attributes[semconv.OPERATION] == semconv.CHAT
    assert attributes[semconv.TASK] == "t-9"
    assert attributes[semconv.REQUEST_MAX_TOKENS] == 100
    assert attributes[semconv.REQUEST_TEMPERATURE] == 0.5
    assert attributes[semconv.REQUEST_TOP_P] == 0.25
    assert attributes[semconv.REQUEST_TOP_K] == 7
    assert attributes[semconv.RESPONSE_ID].startswith("msg_")
    assert attributes[semconv.HTTP_STATUS] == 200


def test_pings_fill_silence(anthropic_client, server):
    server.tighten(keepalive=0.02)
    server.say("a few words, slowly.", step_seconds=0.1)
    stream = events(ask(anthropic_client, stream=True))
    assert [event["type"] for event in stream].count("ping") > 2
    assert text_of(stream) == "a few words, slowly."


# -- the stock client ---------------------------------------------------------------------------


def test_the_stock_client(stock_anthropic):
    answer = stock_anthropic.messages.create(
        model="auto", max_tokens=100, system="Be brief.", messages=HELLO, metadata={"user_id": "a"}
    )
    assert (answer.content[0].text, answer.stop_reason, answer.model) == (TEXT, "end_turn", MODEL)
    assert answer._request_id.startswith("req-")
    conversation = [
        *HELLO,
        {"role": "assistant", "content": answer.content},  # sent back as it came
        {"role": "user", "content": [{"type": "text", "text": "And then?"}]},
    ]
    with stock_anthropic.messages.stream(
        model=MODEL, max_tokens=100, messages=conversation, stop_sequences=["through"]
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == TEXT[: TEXT.index("through")]
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "through")
    assert final.usage.input_tokens > 0
    assert final.usage.output_tokens > 0
    echoed = [*conversation, {"role": "assistant", "content": final.content}, *HELLO]
    raw = stock_anthropic.messages.create(model=MODEL, max_tokens=100, messages=echoed, stream=True)
    kinds = [event.type for event in raw]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
