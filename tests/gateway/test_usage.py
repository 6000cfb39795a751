"""`GET /v1/usage`: the ledger says what the answers said, to one's own tenant alone."""

import csv
import io
import json
from collections.abc import Callable

import httpx
import pytest

from engine.runtime.text.codec import TextCodec
from tenants.embedded import EmbeddedValkey
from tests.gateway.conftest import PRICE, TEXT
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually

pytestmark = pytest.mark.model  # the text is that of the default model


def chat(server: LiveServer, key: str, **more: object) -> dict[str, int]:
    """The `usage` of an answer."""
    with server.client(key) as client:
        body = {"model": MODEL, "messages": HELLO, **more}
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        return response.json()["usage"]


def usage(server: LiveServer, caller: str, **parameters: str) -> httpx.Response:
    with server.client(caller) as client:
        return client.get("/v1/usage", params=parameters)


def total(server: LiveServer, key: str) -> dict[str, float]:
    lines = usage(server, key, by="").json()["data"]
    return lines[0] if lines else dict.fromkeys(NAMES, 0)


NAMES = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "aborted_tokens",
    "device_seconds",
    "money",
)


def growth(server: LiveServer, key: str, action: Callable[[], object]) -> dict[str, float]:
    before = total(server, key)
    action()
    after = total(server, key)
    return {name: after[name] - before[name] for name in NAMES}


def test_the_ledger_says_what_the_answers_said(server: LiveServer) -> None:
    said: list[dict] = []

    def action() -> None:
        said.append(chat(server, "gold", max_tokens=20))
        said.append(chat(server, "gold", max_tokens=20, n=3))
        said.append(chat(server, "gold", max_tokens=20, stop=["flows"]))

    grown = growth(server, "gold", action)
    cached = [answer["prompt_tokens_details"]["cached_tokens"] for answer in said]
    assert grown["requests"] == 3
    assert grown["prompt_tokens"] == sum(answer["prompt_tokens"] for answer in said)
    assert grown["cached_tokens"] == sum(cached)
    assert grown["output_tokens"] == sum(answer["completion_tokens"] for answer in said)
    assert grown["device_seconds"] >= 0
    nanos = PRICE.nanos(*(int(grown[name]) for name in NAMES[1:4]))
    assert grown["money"] == pytest.approx(nanos / 1e9, abs=1e-8)


def test_a_call_that_is_given_up_is_charged_what_it_used(server: LiveServer) -> None:
    server.say(TEXT, endless=True, step_seconds=0.005)
    body = {"model": MODEL, "messages": HELLO, "stream": True, "ignore_eos": True}

    def action() -> None:
        with server.connect(json.dumps(body).encode(), x_request_id="given-up") as connection:
            seen = b""
            while seen.count(b"data:") < 12:
                seen += connection.recv(65536)
        server.ends("given-up")

    grown = growth(server, "gold", action)
    (end,) = server.ends("given-up")
    assert grown["output_tokens"] == end.output_tokens >= 10
    assert grown["prompt_tokens"] == end.prompt_tokens


def test_others_usage_is_not_told_and_any_key_of_the_tenant_may_ask(server: LiveServer) -> None:
    assert growth(server, "bronze", lambda: chat(server, "gold"))["requests"] == 0
    assert usage(server, "reader").json() == usage(server, "gold").json()
    assert usage(server, "revoked").status_code == 401
    refused = usage(server, "gold", tenant="bronze")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unknown_parameter")


def test_lines_by_what_is_asked_for_as_json_and_csv(server: LiveServer) -> None:
    chat(server, "gold")
    answer = usage(server, "gold", by="key,hour", model=MODEL).json()
    public_id = server.keys["gold"].split("-")[1]
    assert answer["object"] == "usage"
    assert answer["by"] == ["key", "hour"]
    assert {line["key"] for line in answer["data"]} == {public_id}
    assert answer["from"] <= answer["data"][0]["hour"] < answer["to"]
    assert usage(server, "gold", model="another").json()["data"] == []
    assert usage(server, "gold", key="0" * 12).json()["data"] == []

    with server.client("gold") as client:
        accepted = client.get("/v1/usage", params={"by": "key"}, headers={"accept": "text/csv"})
    asked = usage(server, "gold", by="key", format="csv")
    assert accepted.text == asked.text
    assert asked.headers["content-type"].startswith("text/csv")
    (row,) = csv.DictReader(io.StringIO(asked.text))
    (line,) = usage(server, "gold", by="key").json()["data"]
    assert row == {name: str(value) for name, value in line.items()}


def usage_of_all(server: LiveServer, **parameters: str) -> httpx.Response:
    with server.client("admin") as client:
        return client.get("/admin/usage", params=parameters)


def test_the_operator_is_told_of_all_tenants(server: LiveServer) -> None:
    chat(server, "gold")
    chat(server, "bronze")
    answer = usage_of_all(server, by="tenant").json()
    assert (answer["object"], answer["tenant"], answer["by"]) == ("usage", None, ["tenant"])
    lines = {line.pop("tenant"): line for line in answer["data"]}
    for tenant in ("gold", "bronze"):  # as each is told itself
        assert lines[tenant] == usage(server, tenant, by="").json()["data"][0]
    assert usage_of_all(server).json()["by"] == ["tenant", "key", "model"]
    one = usage_of_all(server, tenant="bronze", by="key").json()
    assert (one["tenant"], one["data"]) == (
        "bronze",
        usage(server, "bronze", by="key").json()["data"],
    )
    assert usage_of_all(server, tenant="nobody").json()["data"] == []
    table = list(csv.DictReader(io.StringIO(usage_of_all(server, by="tenant", format="csv").text)))
    assert {row["tenant"] for row in table} == set(lines)


def test_nobody_else_is_told_of_all_tenants(server: LiveServer) -> None:
    for key in ("gold", "reader"):
        with server.client(key) as client:
            assert client.get("/admin/usage").status_code == 401
    refused = usage_of_all(server, since="2026-01-01")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "since")


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"from": "yesterday"}, "from"),
        ({"to": "99999-01-01"}, "to"),
        ({"from": "20261301"}, "from"),
        ({"from": "9" * 400}, "from"),
        ({"from": "2026-02-01", "to": "2026-01-01"}, "from"),
        ({"by": "tenant"}, "by"),
        ({"by": "key,key"}, "by"),
        ({"format": "xml"}, "format"),
        ({"since": "2026-01-01"}, "since"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    server: LiveServer, parameters: dict[str, str], param: str
) -> None:
    response = usage(server, "gold", **parameters)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_dates_instants_and_seconds_name_the_same_hours(server: LiveServer) -> None:
    def hours(begin: str, end: str) -> tuple[str, str]:
        answer = usage(server, "gold", **{"from": begin, "to": end}).json()
        return answer["from"], answer["to"]

    expected = ("2026-01-31T00:00:00Z", "2026-01-31T02:00:00Z")
    assert hours("2026-01-31", "2026-01-31T01:00:01Z") == expected
    assert hours("2026-01-31T01:30:00+01:00", "2026-01-31T02:00:00Z") == expected
    assert hours("1769817600", "1769824800") == expected
    assert hours("20260131", "20260131T020000Z") == expected
    assert hours("0", "3600")[0] == "1970-01-01T00:00:00Z"


def test_metrics_and_readiness_say_where_usage_is_kept(server: LiveServer) -> None:
    chat(server, "gold")
    eventually(lambda: server.ledger.pending_bytes == 0)
    ready = httpx.get(f"{server.url}/ready").json()
    assert ready["usage"] == {"state": "stored", "pending_bytes": 0, "lag_seconds": 0.0}
    page = httpx.get(f"{server.url}/metrics").text
    assert "watermaster_usage_journal_pending_bytes 0.0" in page
    assert "watermaster_usage_flush_lag_seconds 0.0" in page


def test_while_usage_cannot_be_written_down_no_new_work_is_taken(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = server.ledger._journals[0]
    monkeypatch.setattr(journal, "retry", lambda: None)  # once a second; it would mend it
    journal.failing = True  # as `tests/tenants/test_usage_ledger.py` brings it about on a disk
    try:
        with server.client("gold") as client:
            body = {"model": MODEL, "messages": HELLO}
            refused = client.post("/v1/chat/completions", json=body)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "usage_unrecorded"
        assert int(refused.headers["retry-after"]) >= 1
    finally:
        journal.failing = False
    assert chat(server, "gold")["completion_tokens"] > 0


def test_with_the_store_away_usage_waits_and_arrives(
    codec: TextCodec, valkey: EmbeddedValkey
) -> None:
    with LiveServer(valkey.start(), codec) as server:
        server.say("still here")
        said = [chat(server, "gold")]
        assert total(server, "gold")["requests"] == 1
        valkey.stop()
        said += [chat(server, "gold") for _ in range(3)]
        eventually(lambda: usage_state(server)["state"] == "journaled")
        assert usage_state(server)["pending_bytes"] > 0
        page = httpx.get(f"{server.url}/metrics").text
        assert "watermaster_usage_journal_pending_bytes 0.0" not in page
        assert "watermaster_usage_flush_failures_total 0.0" not in page
        assert usage(server, "gold").json()["error"]["code"] == "store_unavailable"
        valkey.start()
        eventually(lambda: usage_state(server)["state"] == "stored", 30)
        told = total(server, "gold")
        assert told["requests"] == 4
        assert told["output_tokens"] == sum(answer["completion_tokens"] for answer in said)


def usage_state(server: LiveServer) -> dict[str, object]:
    return httpx.get(f"{server.url}/ready").json()["usage"]
