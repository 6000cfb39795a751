"""Chat and text completions over a real socket, and through the stock client."""

import json

import httpx
import openai
import pytest

from tests.gateway.conftest import TEXT
from tests.gateway.live import HELLO, MODEL, LiveServer

pytestmark = pytest.mark.model  # the text is that of the default model


def chat(client: httpx.Client, **more) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, **more})


def events(response: httpx.Response) -> list:
    """The data of each event; the last must be [DONE]."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks[-1] == ""
    data = [block.removeprefix("data: ") for block in blocks[:-1]]
    assert data[-1] == "[DONE]"
    return [json.loads(text) for text in data[:-1]]


@pytest.fixture
def client(server: LiveServer):
    with server.client() as client:
        yield client


@pytest.fixture
def stock(server: LiveServer):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.keys["gold"]) as stock:
        yield stock


def test_a_whole_answer(client, server):
    response = chat(client)
    assert response.status_code == 200
    body = response.json()
    prompt = len(server.codec.encode_chat(HELLO))
    output = len(server.codec.encode(TEXT, add_special=False)) + 1  # the end token counts
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("created") > 1_700_000_000
    assert body["usage"].pop("prompt_tokens_details")["cached_tokens"] < prompt
    assert body == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": TEXT, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
        },
    }


def test_every_answer_has_an_id_and_the_servers_clock(server):
    with server.client(x_request_id="mine-1") as client:
        assert chat(client).headers["x-request-id"] == "mine-1"
        assert chat(client, n=0).headers["x-request-id"] == "mine-1"
    with server.client() as client:
        for response in (chat(client), chat(client, stream=True), client.get("/nowhere")):
            assert response.headers["x-request-id"].startswith("req-")
            assert 1_700_000_000_000 < int(response.headers["x-server-time"]) < 10**13


def test_a_stream_says_the_same(client):
    chunks = events(chat(client, stream=True))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert all("role" not in delta for delta in deltas[1:])
    assert "".join(delta.get("content", "") for delta in deltas) == TEXT
    assert "\ufffd" not in "".join(delta.get("content", "") for delta in deltas)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_usage_is_not_streamed_unless_asked_for(client, options):
    chunks = events(chat(client, stream=True, stream_options=options))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize("n", [1, 3])
def test_usage_comes_in_a_last_chunk_without_choices(client, n):
    whole = chat(client, n=n, seed=0).json()["usage"]
    chunks = events(chat(client, stream=True, n=n, seed=0, stream_options={"include_usage": True}))
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == whole["completion_tokens"]
    assert usage["prompt_tokens"] == whole["prompt_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_choices_keep_their_index_and_usage_is_summed(client, server):
    texts = ["one.", "two, longer.", "three is the longest of them."]
    server.say(*texts)
    tokens = [len(server.codec.encode(text, add_special=False)) + 1 for text in texts]
    body = chat(client, n=3, seed=0).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in body["choices"]] == texts
    assert body["usage"]["completion_tokens"] == sum(tokens)
    assert body["usage"]["prompt_tokens"] == len(server.codec.encode_chat(HELLO))
    streamed, roles = {0: "", 1: "", 2: ""}, []
    for chunk in events(chat(client, n=3, seed=0, stream=True)):
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["delta"].get("content", "")
        roles += [choice["index"]] if "role" in choice["delta"] else []
    assert list(streamed.values()) == texts
    assert sorted(roles) == [0, 1, 2]


def test_a_prompt_sent_again_is_found_in_the_cache(client):
    messages = [{"role": "user", "content": "a long and winding question " * 20}]
    first = chat(client, messages=messages).json()["usage"]
    second = chat(client, messages=messages).json()["usage"]
    # Only the template's own opening may have been cached by other tests.
    assert first["prompt_tokens_details"]["cached_tokens"] <= 32
    # Whole blocks of 16; the last token is always computed.
    cached = (first["prompt_tokens"] - 1) // 16 * 16
    assert second["prompt_tokens_details"]["cached_tokens"] == cached > 32


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_output_cap(client, name):
    body = chat(client, **{name: 3}).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3


def test_a_tenants_default_and_ceiling_of_output(server):
    with server.client("small") as client:
        assert chat(client).json()["usage"]["completion_tokens"] == 5
        assert chat(client, max_tokens=7).json()["usage"]["completion_tokens"] == 7
        refused = chat(client, max_tokens=8)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["through", ["zzz", "flows wörld"], "東", [" on"]])
def test_stop_strings_end_the_text_before_them(client, server, stop, stream):
    first = min(
        TEXT.find(text) for text in ([stop] if isinstance(stop, str) else stop) if text in TEXT
    )
    if stream:
        chunks = events(
            chat(client, stop=stop, stream=True, stream_options={"include_usage": True})
        )
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        reason, usage = choices[-1]["finish_reason"], chunks[-1]["usage"]
    else:
        body = chat(client, stop=stop).json()
        text, reason = body["choices"][0]["message"]["content"], body["choices"][0]["finish_reason"]
        usage = body["usage"]
    assert text == TEXT[:first]
    assert reason == "stop"
    # the model may have ended by itself, with a token for that, before it was told
    assert usage["completion_tokens"] <= len(server.codec.encode(TEXT, add_special=False)) + 1


def test_a_stop_string_ends_work_that_would_go_on(client, server):
    server.say(TEXT, endless=True, step_seconds=0.001)
    body = chat(client, stop="through").json()
    assert body["choices"][0]["message"]["content"] == TEXT[: TEXT.find("through")]
    assert body["usage"]["completion_tokens"] < 40


def test_a_text_that_only_begins_like_a_stop_string_is_complete(client):
    assert chat(client, stop="and on. And").json()["choices"][0]["message"]["content"] == TEXT


def test_stop_token_ids_and_ignore_eos(client, server):
    comma = server.codec.encode(",", add_special=False)[0]
    body = chat(client, stop_token_ids=[comma], ignore_eos=True).json()
    assert body["choices"][0]["finish_reason"] == "stop"
    body = chat(client, ignore_eos=True, max_tokens=60).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 60


def test_the_developer_role_and_parts_are_the_same_prompt(client):
    parts = [{"type": "text", "text": "rules "}, {"type": "text", "text": "hold"}]
    plain = chat(client, messages=[{"role": "system", "content": "rules hold"}, *HELLO]).json()
    other = chat(client, messages=[{"role": "developer", "content": parts}, *HELLO]).json()
    assert plain["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]


def test_text_completions(client, server):
    body = client.post("/v1/completions", json={"model": MODEL, "prompt": "Once"}).json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 16  # OpenAI's default
    assert TEXT.startswith(choice["text"])
    ids = server.codec.encode("Once", add_special=True)
    again = client.post("/v1/completions", json={"model": MODEL, "prompt": ids}).json()
    assert again["usage"]["prompt_tokens"] == body["usage"]["prompt_tokens"] == len(ids)


def test_text_completions_stream(client):
    request = {"model": MODEL, "prompt": ["Once"], "stream": True, "max_tokens": 100}
    chunks = events(client.post("/v1/completions", json=request))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_models(client, server):
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == [MODEL]
    assert client.get(f"/v1/models/{MODEL}").json() == listed["data"][0]
    assert client.get("/v1/models/none").status_code == 404
    with server.client("elsewhere") as other:
        assert other.get("/v1/models").json()["data"] == []
        assert other.get(f"/v1/models/{MODEL}").status_code == 404


def test_the_stock_client(stock):
    answer = stock.chat.completions.create(model=MODEL, messages=HELLO, user="ann", store=False)
    assert answer.choices[0].message.content == TEXT
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    stream = stock.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}, n=2
    )
    texts = {0: "", 1: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: TEXT, 1: TEXT}
    assert chunk.usage.completion_tokens > 0
    whole = stock.completions.create(model=MODEL, prompt="Once", max_tokens=100)
    assert whole.choices[0].text == TEXT
    streamed = stock.completions.create(model=MODEL, prompt="Once", max_tokens=100, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == TEXT
    assert [model.id for model in stock.models.list()] == [MODEL]
    assert stock.models.retrieve(MODEL).id == MODEL


def test_the_stock_client_understands_refusals(stock):
    with pytest.raises(openai.BadRequestError) as caught:
        stock.chat.completions.create(model=MODEL, messages=HELLO, n=99)
    assert (caught.value.param, caught.value.code) == ("n", "invalid_value")
    with pytest.raises(openai.NotFoundError):
        stock.chat.completions.create(model="none", messages=HELLO)
    with pytest.raises(openai.AuthenticationError):
        stock.with_options(api_key="wm-nope").models.list()
