"""What fuzzing a server shares: the server, its callers, and the search for what leaked."""

import io
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import httpx

from engine.runtime.text.codec import TextCodec
from gateway import logs
from gateway.state import EdgeLimits
from tenants.embedded import EmbeddedValkey
from tenants.model import Tenant
from tests.gateway.live import LiveServer

# What is served by design, on OpenAI's and on Anthropic's routes.
UNAVAILABLE = {503, 504, 529}
VICTIM = "victim"  # a tenant that may be changed at will


class Fuzzed:
    """A server whose log is kept, and every secret that it was told."""

    def __init__(self, server: LiveServer, log: io.StringIO) -> None:
        self.server = server
        self.log = log
        self.secrets = {raw.split("-")[2] for raw in server.keys.values()}
        # Keys that the server hands out are for their owner's eyes, in that one answer.
        self.issued: set[str] = set()

    def check(self, response: httpx.Response) -> None:
        """No failure of the server's own, and no secret that was not asked for."""
        assert response.status_code < 500 or response.status_code in UNAVAILABLE, response.text
        self._remember(response)
        told = response.text.replace(self._key_of(response), "") + str(response.headers)
        self._search(told)

    def search_what_is_kept(self) -> None:
        """Everything that others than the caller may see later."""
        server = self.server
        server.flush()
        server.tracing._provider.force_flush()
        spans = "".join(span.to_json() for span in server.spans.get_finished_spans())
        states = "".join(
            f"{span.context.trace_state}" for span in server.spans.get_finished_spans()
        )
        assert spans
        assert self.log.getvalue()
        for text in (spans, states, repr(server.events.snapshot()), self.log.getvalue()):
            self._search(text, self.issued)
        self._search(httpx.get(f"{server.url}/metrics").text, self.issued)

    def _remember(self, response: httpx.Response) -> None:
        key = self._key_of(response)
        if key:
            self.issued.add(key.split("-")[2])

    def _key_of(self, response: httpx.Response) -> str:
        issues = response.status_code == 201 and "/admin/" in str(response.request.url)
        return response.json().get("key", "") if issues else ""

    def _search(self, text: str, more: Collection[str] = ()) -> None:
        for secret in (*self.secrets, *more):
            assert secret not in text


@contextmanager
def fuzzed_server(codec: TextCodec, valkey: EmbeddedValkey) -> Iterator[Fuzzed]:
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(logs.formatter("json"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        with LiveServer(valkey.start(), codec, limits=EdgeLimits(body_timeout=0.5)) as server:
            server.say("so it goes")
            server.on_loop(lambda store: store.create_tenant(Tenant(VICTIM)))
            issued = server.on_loop(lambda store: store.create_key(VICTIM))
            server.keys[VICTIM] = issued.raw
            yield Fuzzed(server, log)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
