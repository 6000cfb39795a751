"""Whatever is sent, the answer is the server's own, and a secret is nowhere to be found."""

import json
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.gateway.fuzzed import VICTIM, Fuzzed
from tests.gateway.live import HELLO, MODEL

pytestmark = [
    pytest.mark.model,  # the text is that of the default model
    # The server draws at random in its own threads, while hypothesis does in this one.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module"),
]

FUZZ = settings(
    max_examples=60,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
BODIES = {
    "/v1/chat/completions": {"model": MODEL, "messages": HELLO, "max_tokens": 2},
    "/v1/completions": {"model": MODEL, "prompt": "hi", "max_tokens": 2, "logprobs": 1},
    "/v1/messages": {"model": MODEL, "messages": HELLO, "max_tokens": 2, "system": "hm"},
    "/v1/tasks/t/commit": {"attempt": "a", "run": "r"},
    "/admin/tenants": {"id": "made", "weight": 2.0, "queue_tokens": 5},
    f"/admin/tenants/{VICTIM}/keys": {"scopes": ["read"], "models": ["m"], "expires": 4 * 10**9},
}
HEADERS = (
    "x-request-id",
    "x-task-id",
    "x-run-id",
    "x-attempt-id",
    "x-deadline",
    "x-timeout-ms",
    "x-first-token-deadline",
    "idempotency-key",
    "x-stainless-retry-count",
    "traceparent",
    "tracestate",
    "baggage",
    "content-length-of-mine",
    "content-type",
    "accept",
    "user-agent",
)


@pytest.fixture(scope="module")
def caller(fuzzed: Fuzzed) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fuzzed.server.url, timeout=20) as client:
        yield client


def bearer(fuzzed: Fuzzed, path: str) -> dict[str, str]:
    key = fuzzed.server.keys["admin" if path.startswith("/admin") else "gold"]
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", BODIES)
def test_any_bytes_are_a_body(path: str, fuzzed: Fuzzed, caller: httpx.Client) -> None:
    valid = json.dumps(BODIES[path]).encode()
    spoilt = st.tuples(st.integers(0, len(valid)), st.binary(max_size=4), st.integers(0, 4)).map(
        lambda cut: valid[: cut[0]] + cut[1] + valid[cut[0] + cut[2] :]
    )

    @FUZZ
    @given(st.binary(max_size=200) | spoilt)
    def check(body: bytes) -> None:
        fuzzed.check(caller.post(path, content=body, headers=bearer(fuzzed, path)))

    check()


@pytest.mark.parametrize("path", BODIES)
def test_any_values_are_members(path: str, fuzzed: Fuzzed, caller: httpx.Client) -> None:
    """Keys of other tenants among them, as values and as names."""
    keys = st.sampled_from([fuzzed.server.keys[name] for name in ("bronze", "admin", "unknown")])
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | keys
    values = st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=2),
        max_leaves=6,
    )
    body = BODIES[path]
    names = st.sampled_from([*body, "stop", "n", "seed", "stream", "user", "tools"]) | keys

    @FUZZ
    @given(st.dictionaries(names, values, min_size=1, max_size=2))
    def check(more: dict[str, object]) -> None:
        content = json.dumps({**body, **more}).encode()
        fuzzed.check(caller.post(path, content=content, headers=bearer(fuzzed, path)))

    check()


def test_any_headers_and_paths(fuzzed: Fuzzed, caller: httpx.Client) -> None:
    keys = st.sampled_from([fuzzed.server.keys[name] for name in ("bronze", "admin", "unknown")])
    ascii_text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20).map(
        str.strip
    )
    texts = ascii_text | keys | keys.map(lambda key: f"vendor={key}")
    paths = st.sampled_from(
        [
            "/v1/chat/completions",
            "/v1/messages",
            "/v1/models",
            "/v1/models/{}",
            "/v1/tasks/{}",
            "/v1/requests/{}/explain",
            "/admin/tenants/{}",
            "/admin/keys/{}",
            "/admin/tenants?after={}",
            "/{}",
        ]
    )
    body = json.dumps(BODIES["/v1/chat/completions"]).encode()

    @settings(FUZZ, max_examples=200)
    @given(
        paths,
        texts,
        st.dictionaries(st.sampled_from(HEADERS), texts, max_size=4),
        st.sampled_from(["GET", "POST", "DELETE", "PATCH", "OPTIONS"]),
    )
    def check(path: str, part: str, headers: dict[str, str], method: str) -> None:
        sent = {**bearer(fuzzed, path), **headers}
        target = path.format(quote(part, safe="/?&=;,:@+$!*'()"))
        fuzzed.check(caller.request(method, target, content=body, headers=sent))

    check()


def test_bad_keys_are_told_nothing(fuzzed: Fuzzed, caller: httpx.Client) -> None:
    for name, raw in fuzzed.server.keys.items():
        for presented in (raw, raw[:-1], raw + "x", raw.upper(), f"{raw}\t{raw}"):
            for path in ("/v1/models", "/admin/tenants"):
                for headers in (
                    {"authorization": f"Bearer {presented}"},
                    {"authorization": presented},
                    {"x-api-key": presented},
                    {"authorization": f"Basic {presented}", "x-api-key": presented},
                ):
                    answer = caller.get(path, headers=headers)
                    fuzzed.check(answer)
                    owner = presented == raw and ("admin" in path) == (name == "admin")
                    assert answer.status_code in ({200, 401, 403} if owner else {401})


def test_what_is_kept_holds_no_secret(fuzzed: Fuzzed, caller: httpx.Client) -> None:
    """The log of everything above, its spans, its events, and the metrics."""
    key = fuzzed.server.keys["bronze"]
    traced = {**bearer(fuzzed, "/v1"), "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    for headers in ({"tracestate": f"a={key}"}, {"baggage": f"watermaster.task={key}"}):
        answer = caller.post(
            "/v1/chat/completions",
            json=BODIES["/v1/chat/completions"],
            headers={**traced, **headers},
        )
        assert answer.status_code == 200
        fuzzed.check(answer)
    fuzzed.search_what_is_kept()
