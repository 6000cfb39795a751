"""Tenants' limits over HTTP: what is refused, what is said, and what is spent in the end."""

import asyncio
import json
import re
import shlex
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from engine.runtime.text.codec import TextCodec
from tenants.embedded import EmbeddedValkey
from tenants.model import Tenant
from tenants.prices import Price
from tenants.settings import SETTINGS
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually

pytestmark = pytest.mark.model  # the text is that of the default model

PRICE = Price(prompt=1.0, cached=0.5, output=2.0)
NAMES = (f"tenant{number}" for number in count())


@pytest.fixture(scope="module")
def server(codec: TextCodec, valkey: EmbeddedValkey) -> Iterator[LiveServer]:
    with LiveServer(valkey.start(), codec, price=PRICE) as server:
        server.say("So be it, said the river, and flowed on.")
        yield server
        server.assert_idle()


def tenant(server: LiveServer, **settings: object) -> str:
    """The name of a new tenant with a key."""
    name = next(NAMES)
    server.add(Tenant(name, **settings))
    return name


def ask(server: LiveServer, name: str, **body: object) -> httpx.Response:
    with server.client(name) as client:
        asked = {"model": MODEL, "messages": HELLO, "max_tokens": 4, **body}
        return client.post("/v1/chat/completions", json=asked)


def ok(response: httpx.Response) -> httpx.Response:
    assert response.status_code == 200, response.text
    return response


def standing(server: LiveServer, name: str) -> dict[str, int]:
    """What remains of each limit, once all is settled; a refused call changes nothing."""
    eventually(lambda: server.gateway.slots.held == 0)
    fields = ask(server, name, temperature=-1).headers["ratelimit"].split(", ")
    return {field.split('"')[1]: int(field.split("r=")[1].split(";")[0]) for field in fields}


def test_answers_say_how_the_limits_stand(server):
    name = tenant(server, requests_per_minute=60, tokens_per_minute=100_000)
    response = ok(ask(server, name))
    assert response.headers["x-ratelimit-limit-requests"] == "60"
    assert response.headers["x-ratelimit-remaining-requests"] == "59"
    assert response.headers["x-ratelimit-reset-requests"] in {
        "1s",
        *(f"{n}ms" for n in range(1000)),
    }
    assert response.headers["x-ratelimit-limit-tokens"] == "100000"
    used = response.json()["usage"]["total_tokens"]
    assert int(response.headers["x-ratelimit-remaining-tokens"]) >= 100_000 - used
    assert response.headers["ratelimit-policy"] == (
        '"requests_per_minute";q=60;qu="requests";w=60, '
        '"tokens_per_minute";q=100000;qu="tokens";w=60'
    )
    assert response.headers["ratelimit"].startswith('"requests_per_minute";r=59;t=1, "tokens')
    stream = ok(ask(server, name, stream=True))
    assert stream.headers["x-ratelimit-remaining-requests"] in {"58", "59"}
    refused = ask(server, name, max_tokens=0)
    assert refused.status_code == 400
    assert refused.headers["x-ratelimit-limit-requests"] == "60"


def test_who_has_no_limits_is_told_of_none(server):
    headers = ok(ask(server, "gold")).headers
    assert not [header for header in headers if "ratelimit" in header]


def test_messages_tell_limits_as_anthropic_does(server):
    name = tenant(server, requests_per_minute=60, input_tokens_per_minute=50_000)
    with anthropic.Anthropic(base_url=server.url, api_key=server.keys[name]) as client:
        raw = client.messages.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=4)
    assert raw.headers["anthropic-ratelimit-requests-limit"] == "60"
    assert raw.headers["anthropic-ratelimit-requests-remaining"] == "59"
    assert raw.headers["anthropic-ratelimit-input-tokens-limit"] == "50000"
    assert raw.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    assert "x-ratelimit-limit-requests" not in raw.headers


def test_too_many_requests_in_a_minute_are_told_when_to_come_back(server):
    name = tenant(server, requests_per_minute=2)
    for _ in range(2):
        ok(ask(server, name))
    refused = ask(server, name)
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["code"], error["limit"]) == ("rate_limit_exceeded", "requests_per_minute")
    wait = int(refused.headers["retry-after-ms"])
    assert 25_000 < wait <= 37_500  # one comes back every 30 s, and callers are spread by a quarter
    assert int(refused.headers["retry-after"]) == -(-wait // 1000)
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"


def test_a_stock_client_waits_as_told_and_succeeds(server):
    name = tenant(server, requests_per_minute=60)
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 1}
    sent: list[httpx.Request] = []
    counting = httpx.Client(event_hooks={"request": [sent.append]})
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=server.keys[name], http_client=counting
    ) as client:
        for number in range(1, 100):
            client.chat.completions.create(**asked)
            if len(sent) > number:
                break
    assert number > 60
    assert len(sent) == number + 1  # one refusal, one wait of a second, and in


def test_a_call_that_exceeds_a_limit_by_itself_is_not_to_be_retried(server):
    name = tenant(server, output_tokens_per_minute=100)
    refused = ask(server, name, max_tokens=101)
    assert refused.status_code == 429
    assert refused.json()["error"]["requested"] == 101
    assert refused.headers["x-should-retry"] == "false"
    ok(ask(server, name, max_tokens=100))


def test_a_budget_in_tokens_is_a_quota_and_stock_clients_give_up(server):
    name = tenant(server, tokens_per_day=50)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.keys[name]) as client:
        asked = {"model": MODEL, "messages": HELLO, "max_tokens": 4}
        spent = client.chat.completions.create(**asked).usage.total_tokens
        asked["max_tokens"] = 51 - spent
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**asked)
    assert 0 < spent <= 50
    assert caught.value.code == "insufficient_quota"
    assert caught.value.body["limit"] == "tokens_per_day"
    assert caught.value.body["remaining"] == 50 - spent
    headers = caught.value.response.headers
    assert headers["x-should-retry"] == "false"
    midnight = 86_400 - time.time() % 86_400
    assert midnight - 60 < int(headers["retry-after"]) < midnight + 60
    assert standing(server, name)["tokens_per_day"] == 50 - spent


def test_a_budget_in_money_counts_cached_tokens_at_their_price(server):
    name = tenant(server, money_per_month=1.0)
    long = [{"role": "user", "content": "water " * 100}]
    spent = 0
    for _ in range(2):
        usage = ok(ask(server, name, messages=long)).json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        spent += PRICE.nanos(usage["prompt_tokens"], cached, usage["completion_tokens"])
    assert cached > 0
    assert standing(server, name)["money_per_month"] == (10**9 - spent) // 1000  # in micros


@pytest.mark.parametrize(
    ("body", "status"),
    [({"temperature": -1}, 400), ({"model": "none"}, 404), ({"max_tokens": 10**6}, 400)],
)
def test_a_call_that_is_refused_for_itself_uses_nothing(server, body, status):
    name = tenant(server, requests_per_minute=60, concurrency=1, tokens_per_day=1000)
    for _ in range(3):
        assert ask(server, name, **body).status_code == status
    left = standing(server, name)
    assert left == {"requests_per_minute": 60, "concurrency": 1, "tokens_per_day": 1000}


def test_a_call_that_comes_to_the_engine_after_its_deadline_uses_nothing(server):
    name = tenant(server, requests_per_minute=2)
    with ThreadPoolExecutor() as pool, server.client(name, x_timeout_ms="50") as client:
        server.say("on and on ", endless=True, step_seconds=0.005)
        with server.occupied(1), server.model.held():
            eventually(lambda: server.model.stuck)  # the engine looks at nothing until its end
            body = {"model": MODEL, "messages": HELLO}
            late = pool.submit(client.post, "/v1/chat/completions", json=body)
            time.sleep(0.2)
        assert late.result().status_code == 504
    server.say("So be it.")
    assert standing(server, name)["requests_per_minute"] == 2


def test_the_prompt_of_several_choices_counts_once(server):
    name = tenant(server, input_tokens_per_minute=100_000, tokens_per_day=1000)
    usage = ok(ask(server, name, n=3, max_tokens=5)).json()["usage"]
    assert usage["completion_tokens"] == 15
    assert standing(server, name)["tokens_per_day"] == 1000 - usage["total_tokens"]
    refused = ask(server, name, n=10, max_tokens=100)
    assert refused.json()["error"]["requested"] == usage["prompt_tokens"] + 1000


def test_an_aborted_call_pays_for_what_was_computed(server):
    name = tenant(server, tokens_per_day=100_000, concurrency=1)
    prompt = ok(ask(server, name)).json()["usage"]["total_tokens"] - 4
    before = standing(server, name)["tokens_per_day"]
    server.say("on and on ", endless=True, step_seconds=0.005)
    body = {"model": MODEL, "messages": HELLO, "stream": True, "max_tokens": 1000}
    body["ignore_eos"] = True
    content = json.dumps(body).encode()
    with server.connect(content, name, x_request_id=f"aborted-{name}") as connection:
        assert connection.recv(65536)
        assert ask(server, name).json()["error"]["limit"] == "concurrency"
    (end,) = server.ends(f"aborted-{name}")
    assert 0 < end.output_tokens < 1000
    server.say("So be it.")
    left = standing(server, name)
    assert left["tokens_per_day"] == before - prompt - end.output_tokens
    assert left["concurrency"] == 1


def test_a_call_aborted_in_the_queue_pays_nothing(server):
    name = tenant(server, tokens_per_day=100_000, requests_per_minute=1000)
    server.say("on and on ", endless=True, step_seconds=0.005)
    with server.occupied(key="bronze"):
        body = {"model": MODEL, "messages": HELLO, "max_tokens": 100}
        with server.connect(json.dumps(body).encode(), name, x_request_id=f"queued-{name}"):
            eventually(lambda: server.engine.status().load.waiting == 1)
        (end,) = server.ends(f"queued-{name}")
        assert end.admitted is None
    server.say("So be it.")
    assert standing(server, name)["tokens_per_day"] == 100_000


def test_one_call_at_a_time_goes_on_back_to_back(server):
    name = tenant(server, concurrency=1)
    for _ in range(15):
        ok(ask(server, name))
        ok(ask(server, name, stream=True))


def test_a_cap_holds_under_clients_that_hang_up(server):
    """200 callers at a cap of 4, each gone at another moment."""
    name = tenant(server, concurrency=4)
    server.say("on and on ", endless=True, step_seconds=0.001)
    body = {"model": MODEL, "messages": HELLO, "stream": True, "ignore_eos": True, "n": 1}
    content = json.dumps(body).encode()
    most = refusals = 0
    for number in range(200):
        with server.connect(content, name) as connection:
            if number % 3:
                connection.settimeout(5)
                refusals += b" 429 " in connection.recv(65536)
            load = server.engine.status().load
            most = max(most, load.running + load.waiting)
    server.assert_idle()
    assert most <= 4
    server.say("So be it.")
    assert standing(server, name)["concurrency"] == 4


def test_a_hundred_calls_at_once_stay_within_the_budget(server):
    name = tenant(server, tokens_per_hour=1000)
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 60}

    async def storm() -> list[httpx.Response]:
        headers = {"authorization": f"Bearer {server.keys[name]}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
            calls = (client.post("/v1/chat/completions", json=body) for _ in range(100))
            return await asyncio.gather(*calls)

    answers = asyncio.run(storm())
    good = [answer.json()["usage"]["total_tokens"] for answer in answers if answer.is_success]
    assert 10 <= len(good) < 100
    assert sum(good) <= 1000
    codes = {answer.json()["error"]["code"] for answer in answers if not answer.is_success}
    assert codes <= {"insufficient_quota", "rate_limit_exceeded"}
    assert standing(server, name)["tokens_per_hour"] == 1000 - sum(good)


def test_what_open_calls_reserve_of_a_budget_is_waited_for(server):
    """They use less than they reserve; whoever hears that the budget is spent gives up for good."""
    name = tenant(server, tokens_per_day=1000)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.keys[name]) as client:
        asked = {"model": MODEL, "messages": HELLO, "max_tokens": 600}
        with ThreadPoolExecutor(1) as pool:
            with server.model.held():
                first = pool.submit(client.chat.completions.create, **asked)
                eventually(lambda: server.model.stuck)
                refused = ask(server, name, max_tokens=600)
                hopeless = ask(server, name, max_tokens=999)
            spent = first.result().usage.total_tokens
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (429, "rate_limit_exceeded")
        assert (error["limit"], "x-should-retry" in refused.headers) == ("tokens_per_day", False)
        assert int(refused.headers["retry-after"]) >= 1
        assert hopeless.json()["error"]["code"] == "insufficient_quota"
        spent += client.chat.completions.create(**asked).usage.total_tokens
    assert standing(server, name)["tokens_per_day"] == 1000 - spent
    last = ask(server, name, max_tokens=1000 - spent)  # and its prompt
    assert last.json()["error"]["code"] == "insufficient_quota"


def test_metrics_tell_of_refusals_and_of_the_store(server):
    name = tenant(server, requests_per_minute=1)
    ok(ask(server, name))
    assert ask(server, name).status_code == 429
    page = metrics(server)
    assert 'watermaster_limit_refusals_total{limit="requests_per_minute"}' in page
    assert "watermaster_limits_on_lease_only 0.0" in page


def test_a_closed_socket_before_the_body_uses_nothing(server):
    name = tenant(server, requests_per_minute=60, concurrency=2)
    for _ in range(5):
        with server.connect(b"{", name, content_length="100") as connection:
            connection.shutdown(socket.SHUT_WR)
    assert standing(server, name) == {"requests_per_minute": 60, "concurrency": 2}


def test_with_the_store_away_calls_go_on_within_the_lease(server, valkey):
    name = tenant(server, tokens_per_day=1000)
    spent = ok(ask(server, name)).json()["usage"]["total_tokens"]
    eventually(lambda: standing(server, name)["tokens_per_day"] == 1000 - spent)
    time.sleep(0.2)  # until what was given back is leased again
    valkey.stop()
    try:
        eventually(lambda: "watermaster_limits_on_lease_only 1.0" in metrics(server))
        spent += ok(ask(server, name)).json()["usage"]["total_tokens"]
        refused = ask(server, name, max_tokens=950)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert int(refused.headers["retry-after"]) >= 1
    finally:
        valkey.start()
    eventually(lambda: "watermaster_limits_on_lease_only 0.0" in metrics(server))
    assert standing(server, name)["tokens_per_day"] == 1000 - spent
    assert ask(server, name, max_tokens=950).json()["error"]["code"] == "insufficient_quota"


def metrics(server: LiveServer) -> str:
    return httpx.get(f"{server.url}/metrics").text


DOCUMENT = (Path(__file__).parents[2] / "docs/tenancy.md").read_text()


def commands() -> list[list[str]]:
    """Those of the document, with their arguments."""
    text = "\n".join(re.findall(r"```sh\n(.*?)```", DOCUMENT, re.DOTALL)).replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in text.splitlines()]


def settings_of(arguments: list[str]) -> dict[str, int]:
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    return {flag.strip("-").replace("-", "_"): int(value) for flag, value in pairs}


def test_the_document_says_what_is_answered(server):
    (create,) = [command for command in commands() if "team" in command]
    name = tenant(server, **settings_of(create[4:]))
    headers = ok(ask(server, name)).headers
    (told,) = re.findall(r"```http\n(.*?)```", DOCUMENT, re.DOTALL)
    said = dict(line.split(": ", 1) for line in told.splitlines())
    assert said == {name: headers[name] for name in said}
    page = metrics(server)
    for metric in re.findall(r"^\| `(watermaster_\w+)", DOCUMENT, re.MULTILINE):
        assert f"\n{metric}" in page


def test_the_document_lists_every_setting():
    table = DOCUMENT.partition("## How a call")[0]
    listed = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)
    assert listed == [(setting.name, setting.about) for setting in SETTINGS.values()]
