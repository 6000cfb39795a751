"""`docs/api.md` is what its tables say, and the examples taken from it answer as it says."""

import json
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.host.engine import Engine
from engine.host.worker import EngineState
from engine.runtime.text.codec import TextCodec
from gateway import openapi_headers
from gateway.api_error_examples import ELSEWHERE
from gateway.api_page import render_page
from gateway.event_pump import EventPump
from gateway.slots import Slots
from tenants.embedded import EmbeddedValkey
from tenants.store import Store
from tests.gateway.live import CONTEXT, MODEL, LiveServer, eventually

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/api.md").read_text()
EXAMPLE = re.compile(
    r"(?:While (?P<state>[^\n]+):\n\n)?```sh\n(?P<call>.*?)\n```\n\n"
    r"Answers (?P<status>\d{3}):\n\n```(?P<language>\w+)\n(?P<answer>.*?)\n```",
    re.DOTALL,
)
ANYTHING = "…"
LIMITS = (
    "requests_per_minute",
    "tokens_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
)


def test_the_page_is_made_from_the_tables() -> None:
    assert render_page() == PAGE, "python -m gateway.api_page > docs/api.md"


@pytest.mark.parametrize(("code", "test"), ELSEWHERE.items())
def test_what_takes_more_than_a_call_has_a_test(code: str, test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()


@dataclass
class Tour:
    """The server that the page's reader has, and the names that stand in its examples."""

    server: LiveServer
    valkey: EmbeddedValkey
    names: dict[str, str]

    def ask(self, call: str) -> httpx.Response:
        """What curl would do."""
        text = re.sub(r"\$\(\(CONTEXT - 1\)\)", str(CONTEXT - 1), call.replace("\\\n", " "))
        words = iter(shlex.split(re.sub(r"\$(\w+)", lambda name: self.names[name[1]], text))[1:])
        method, url, headers, content = "", "", {}, None
        for word in words:
            if word == "-X":
                method = next(words)
            elif word == "-H":
                name, _, value = next(words).partition(":")
                headers[name] = value.strip()
            elif word == "-d":
                content = next(words)
            elif not word.startswith("-"):
                url = word
        method = method or ("GET" if content is None else "POST")
        return httpx.request(method, url, headers=headers, content=content, timeout=30)

    def weigh(self, text: str) -> None:
        """Write into acme's record past everything that would have a look at it."""

        async def write(client: Any) -> None:
            await client.hset("wm:tenant:acme", "weight", text)

        self.server.on_loop(lambda store: store.connection.call(write))

    async def _engine(self, _: Store) -> Engine:
        """One that was not started so far."""
        return self.server._engine(MODEL, self.server.model, EventPump(()))

    @contextmanager
    def while_(self, state: str | None) -> Iterator[None]:
        gateway = self.server.gateway
        slots, models = gateway.slots, gateway.models
        if state == "the server shuts down":
            gateway.draining = True
        elif state == "the tenant has as many calls open as it may":
            gateway.slots = Slots(8, 0)
        elif state == "the server has as many calls open as it may":
            gateway.slots = Slots(0, 8)
        elif state == "the model is loaded":
            late = self.server.on_loop(self._engine)
            gateway.models = {MODEL: replace(models[MODEL], engine=late)}
        elif state == "the engine fails":
            self.server.model.fault = RuntimeError("as the page says")
        elif state == "somebody has damaged the record of acme in the store":
            self.weigh("heavy")
        elif state == "the store is away":
            self.valkey.stop()
        else:
            assert state is None, f"nobody knows how it comes that {state}"
        yield
        gateway.draining, gateway.slots, gateway.models = False, slots, models
        self.valkey.start()
        if state and "acme" in state:
            self.weigh("2.0")
        eventually(lambda: self.server.engine.status().state == EngineState.READY)


@pytest.fixture(scope="module")
def tour(codec: TextCodec, valkey: EmbeddedValkey) -> Iterator[Tour]:
    with LiveServer(valkey.start(), codec) as server:
        server.say("so it goes and goes and goes")
        limits = dict.fromkeys(LIMITS, 1_000_000)
        server.on_loop(lambda store: store.update_tenant("gold", **limits))
        names = {"URL": server.url, "MODEL": MODEL, "CONTEXT": str(CONTEXT)}
        names |= {"KEY": server.keys["gold"], "ADMIN": server.keys["admin"]}
        names |= {"READER": server.keys["reader"], "SOON": str(round(time.time() + 60)) + "000"}
        yield Tour(server, valkey, names)


@pytest.mark.model
def test_the_examples_answer_as_the_page_says(tour: Tour) -> None:
    """In the page's order, as its reader would run them."""
    carried: set[str] = set()
    examples = list(EXAMPLE.finditer(PAGE))
    assert len(examples) == PAGE.count("```sh\n") > 40
    for example in examples:
        call, answer = example["call"], example["answer"]
        with tour.while_(example["state"]):
            response = tour.ask(call)
        assert response.status_code == int(example["status"]), f"{call}\n{response.text}"
        carried |= set(response.headers)
        if example["language"] == "json":
            compare(json.loads(answer), response.json(), call)
        else:
            pattern = ".*".join(map(re.escape, answer.split(ANYTHING)))
            assert re.fullmatch(pattern, response.text.strip(), re.DOTALL), response.text
        if call.startswith("curl -s $URL/admin/tenants/acme/keys") and "-d" in call:
            tour.names["ID"] = response.json()["public_id"]
    elsewhere = set(openapi_headers.ROUTES)  # takes two models: test_routing.py
    assert set(openapi_headers.all_of_answers()) - elsewhere <= carried


def test_every_header_is_in_an_example() -> None:
    sent = {*openapi_headers.COMMON, *openapi_headers.GENERATION, *openapi_headers.ANTHROPIC}
    calls = "".join(example["call"] for example in EXAMPLE.finditer(PAGE))
    assert {name for name in sent if f"{name}:" not in calls} == set()


def compare(expected: Any, found: Any, where: str) -> None:
    """Whether `found` is what is written, where … stands for anything."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        wanted = set(expected) - {ANYTHING}
        assert wanted == set(found) or (ANYTHING in expected and wanted < set(found)), where
        for name in wanted:
            compare(expected[name], found[name], f"{where}: {name}")
    elif isinstance(expected, list):
        more = expected[-1:] == [ANYTHING]
        known = expected[: len(expected) - more]
        assert len(known) == len(found) or (more and len(known) <= len(found)), where
        for position, value in enumerate(known):
            compare(value, found[position], f"{where}: {position}")
    elif isinstance(expected, str) and ANYTHING in expected:
        pattern = ".*".join(map(re.escape, expected.split(ANYTHING)))
        assert re.fullmatch(pattern, str(found), re.DOTALL), (where, found)
    else:
        assert expected == found, where
