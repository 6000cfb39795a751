"""Streams as they run: silence, slow readers, failures in the middle, constant cost."""

import json
import socket

import openai
import pytest

from telemetry.events import Cause, SequenceEnded
from tenants.model import Tenant
from tests.gateway.live import HELLO, MODEL, eventually

pytestmark = pytest.mark.model  # the text is that of the default model

BODY = {"model": MODEL, "messages": HELLO, "stream": True}
PATH = "/v1/chat/completions"


def content(**more) -> bytes:
    return json.dumps({**BODY, **more}).encode()


def test_the_status_waits_for_the_first_output_and_silence_is_filled_with_comments(server):
    server.tighten(keepalive=0.05)
    before = server.model.steps
    with server.model.held(), server.connect(content()) as connection:
        eventually(lambda: server.model.steps > before)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):  # neither a status nor a comment
            connection.recv(1)
        connection.settimeout(10)
        server.model.running.set()
        data = connection.recv(65536)
        assert data.startswith(b"HTTP/1.1 200 OK")
        server.say("so it goes ", endless=True, step_seconds=0.2)
        while b": keep-alive" not in data:
            data += connection.recv(65536)
    body = data.split(b"\r\n\r\n", 1)[1]
    lines = [line for line in body.replace(b"\r\n", b"\n").split(b"\n") if line]
    events = [line for line in lines if line.startswith((b"data: ", b": "))]
    assert set(events) >= {b": keep-alive"}


def test_stock_clients_pass_over_comments(server):
    server.tighten(keepalive=0.01)
    server.say("a few words, slowly.", step_seconds=0.05)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.keys["gold"]) as stock:
        stream = stock.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "a few words, slowly."


def test_the_body_ends_with_done(server):
    with server.connect(content()) as connection:
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += connection.recv(65536)
    last = data.split(b"data: ")[-1]
    assert last.replace(b"\r\n", b"").startswith(b"[DONE]\n\n")


@pytest.fixture
def slow_reader(server):
    """A connection whose reader takes nothing, with the least the system will buffer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect(server.address)
    yield connection
    connection.close()


def test_a_reader_that_stops_is_cut_off_and_slows_nobody(server, slow_reader):
    server.tighten(write_timeout=0.5)
    server.say("so it goes ", endless=True, step_seconds=0.005)
    server.send(slow_reader, content(ignore_eos=True, n=7), x_request_id="stuck")
    with server.client() as client:
        while not server.logged(SequenceEnded, "stuck"):
            answer = client.post(PATH, json={**BODY, "stream": False, "max_tokens": 5})
            assert answer.json()["usage"]["completion_tokens"] == 5
    ends = server.ends("stuck", 7)
    assert {end.cause for end in ends} == {Cause.SLOW_READER}
    assert sum(end.output_tokens for end in ends) < 7 * 1000
    eventually(lambda: server.gateway.slots.held == 0)
    data = b"".join(iter(lambda: slow_reader.recv(65536), b""))
    assert data.startswith(b"HTTP/1.1 200 OK")
    assert b"[DONE]" not in data
    assert not data.endswith(b"0\r\n\r\n")  # cut off, not complete


def test_what_piles_up_is_bounded_and_leaves_in_few_chunks(server, slow_reader):
    server.say("so it goes ", endless=True, step_seconds=0.0005)
    server.send(slow_reader, content(ignore_eos=True, n=4), x_request_id="piling")
    ends = server.ends("piling", 4)
    assert {end.cause for end in ends} == {Cause.SLOW_READER}
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        piece = slow_reader.recv(65536)
        assert piece
        data += piece
    assert b'"code":"slow_reader"' in data
    assert b"[DONE]" not in data
    tokens = sum(end.output_tokens for end in ends)
    assert tokens > 2000  # the bound on what may pile up
    assert data.count(b"data: ") < tokens - 1500


def test_an_engine_that_dies_in_mid_stream_is_an_in_band_error(server):
    server.say("so it goes ", endless=True, step_seconds=0.002)
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=server.keys["gold"], max_retries=0
    ) as stock:
        stream = stock.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        chunks = iter(stream)
        next(chunks)
        server.model.fault = RuntimeError("the device fell off the bus")
        with pytest.raises(openai.APIError) as caught:
            for _ in chunks:
                pass
        assert caught.value.code == "engine_restarting"
    eventually(lambda: server.engine.status().state == "ready")


def test_a_tenant_behind_an_impatient_proxy_has_its_status_before_the_first_token(server):
    if "impatient" not in server.keys:
        server.add(Tenant("impatient", stream_header_delay_ms=50))
    server.tighten(keepalive=0.05)
    before = server.model.steps
    with server.model.held(), server.connect(content(), "impatient") as connection:
        eventually(lambda: server.model.steps > before)
        data = b""
        while b": keep-alive" not in data:
            data += connection.recv(65536)
        assert data.startswith(b"HTTP/1.1 200 OK")
        assert b"data: " not in data
        server.model.running.set()
        while b"[DONE]" not in data:
            data += connection.recv(65536)
        assert b'"delta":{"role":"assistant"' in data


def test_then_whatever_becomes_of_the_call_is_told_in_the_stream(server):
    if "impatient" not in server.keys:
        server.add(Tenant("impatient", stream_header_delay_ms=50))
    server.say("on and on ", endless=True, step_seconds=0.005)
    with server.occupied(), server.client("impatient", x_timeout_ms="300") as client:
        answer = client.post(PATH, json=BODY)
        missed = client.post("/v1/messages", json={**BODY, "max_tokens": 9})
    assert answer.status_code == 200
    (event,) = [line for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    assert "[DONE]" not in answer.text
    assert missed.status_code == 200
    assert "event: error" in missed.text
    assert "message_start" not in missed.text
    with server.client("impatient") as client:  # what is known at once has a status
        assert client.post(PATH, json={**BODY, "n": 0}).status_code == 400
