"""What the tests of Anthropic's Messages API share."""

import json

import httpx

from tests.gateway.live import HELLO, MODEL

PATH = "/v1/messages"
BODY = {"model": MODEL, "max_tokens": 100, "messages": HELLO}


def ask(client: httpx.Client, **more) -> httpx.Response:
    return client.post(PATH, json={**BODY, **more})


def events(response: httpx.Response) -> list[dict]:
    """The data of each event, whose name is its type."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    data = []
    for block in blocks:
        name, text = block.split("\n")
        data.append(json.loads(text.removeprefix("data: ")))
        assert name == f"event: {data[-1]['type']}"
    return data


def text_of(stream: list[dict]) -> str:
    deltas = [event["delta"] for event in stream if event["type"] == "content_block_delta"]
    assert {delta["type"] for delta in deltas} <= {"text_delta"}
    return "".join(delta["text"] for delta in deltas)
