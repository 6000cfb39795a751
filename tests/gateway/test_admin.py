"""The admin API: tenants and keys over HTTP, felt by callers without a restart."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tenants.settings import SETTINGS
from tests.gateway.live import HELLO, MODEL, LiveServer, eventually

pytestmark = pytest.mark.model  # the text is that of the default model


A_KEY = f"wm-0123456789ab-{'S3cret' * 7}x"


@pytest.fixture
def admin(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client("admin") as client:
        yield client


def made(response: httpx.Response, status: int = 200) -> dict:
    assert response.status_code == status, response.text
    return response.json()


def refused(response: httpx.Response, status: int, code: str) -> dict:
    error = made(response, status)["error"]
    assert error["code"] == code
    return error


def chat(server: LiveServer, raw: str) -> httpx.Response:
    return httpx.post(
        f"{server.url}/v1/chat/completions",
        json={"model": MODEL, "messages": HELLO},
        headers={"authorization": f"Bearer {raw}"},
        timeout=20,
    )


def test_a_tenant_and_its_key_from_nothing_to_their_end(
    server: LiveServer, admin: httpx.Client
) -> None:
    tenant = made(admin.post("/admin/tenants", json={"id": "acme", "max_max_tokens": 3}), 201)
    assert (tenant["weight"], tenant["max_max_tokens"], tenant["queue_tokens"]) == (1.0, 3, None)
    issued = made(admin.post("/admin/tenants/acme/keys"), 201)
    key = f"/admin/keys/{issued['public_id']}"
    assert chat(server, issued["key"]).json()["usage"]["completion_tokens"] == 3

    changed = made(admin.patch("/admin/tenants/acme", json={"max_max_tokens": 2, "weight": 5}))
    assert (changed["max_max_tokens"], changed["weight"]) == (2, 5.0)
    eventually(lambda: chat(server, issued["key"]).json()["usage"]["completion_tokens"] == 2)
    lifted = made(admin.patch("/admin/tenants/acme", json={"max_max_tokens": None}))
    assert lifted == made(admin.get("/admin/tenants/acme"))
    assert (lifted["max_max_tokens"], lifted["weight"]) == (None, 5.0)

    made(admin.patch(key, json={"disabled": True}))
    eventually(lambda: chat(server, issued["key"]).json()["error"]["reason"] == "disabled")
    made(admin.patch(key, json={"disabled": False, "models": [MODEL], "expires": 4_000_000_000}))
    eventually(lambda: chat(server, issued["key"]).status_code == 200)
    shown = made(admin.get(key))
    assert (shown["models"], shown["expires"]) == ([MODEL], 4_000_000_000)
    assert made(admin.patch(key, json={"expires": None}))["expires"] is None

    second = made(admin.post(f"{key}/rotate", json={"overlap": 600}), 201)
    assert (second["models"], second["tenant"]) == ([MODEL], "acme")
    assert chat(server, second["key"]).status_code == 200
    assert chat(server, issued["key"]).status_code == 200
    assert made(admin.post(f"{key}/revoke"))["revoked"] is True
    eventually(lambda: chat(server, issued["key"]).json()["error"]["reason"] == "revoked")
    assert chat(server, second["key"]).status_code == 200
    listed = made(admin.get("/admin/tenants/acme/keys"))["data"]
    assert {one["public_id"]: one["revoked"] for one in listed} == {
        issued["public_id"]: True,
        second["public_id"]: False,
    }
    assert "digest" not in listed[0]


def test_the_admin_key_opens_nothing_else_and_no_other_key_opens_it(
    server: LiveServer, admin: httpx.Client
) -> None:
    assert chat(server, server.keys["admin"]).json()["error"]["reason"] == "unknown"
    assert admin.get("/v1/models").status_code == 401
    assert httpx.get(f"{server.url}/admin/tenants").status_code == 401
    for key in ("gold", "reader", "revoked", "unknown"):
        with server.client(key) as client:
            refused(client.get("/admin/tenants"), 401, "invalid_api_key")
            refused(client.post("/admin/tenants", json={"id": "mine"}), 401, "invalid_api_key")
    forged = server.keys["admin"][:-1] + ("0" if server.keys["admin"][-1] != "0" else "1")
    bearer = {"authorization": f"Bearer {forged}"}
    assert httpx.get(f"{server.url}/admin/tenants", headers=bearer).status_code == 401


def test_a_new_admin_key_ends_the_one_before(server: LiveServer, admin: httpx.Client) -> None:
    server.keys["admin"] = server.on_loop(lambda store: store.admin_key.issue())
    refused(admin.get("/admin/tenants"), 401, "invalid_api_key")
    with server.client("admin") as client:
        made(client.get("/admin/tenants"))
        server.on_loop(lambda store: store.admin_key.revoke())
        refused(client.get("/admin/tenants"), 401, "invalid_api_key")
    server.keys["admin"] = server.on_loop(lambda store: store.admin_key.issue())


def test_tenants_are_listed_a_page_at_a_time(server: LiveServer, admin: httpx.Client) -> None:
    for name in ("page-a", "page-b", "page-c"):
        made(admin.post("/admin/tenants", json={"id": name}), 201)
    first = made(admin.get("/admin/tenants", params={"after": "page-", "limit": 2}))
    assert [tenant["id"] for tenant in first["data"]] == ["page-a", "page-b"]
    rest = made(admin.get("/admin/tenants", params={"after": first["next"], "limit": 1}))
    assert [tenant["id"] for tenant in rest["data"]] == ["page-c"]
    everyone = made(admin.get("/admin/tenants"))
    assert everyone["next"] is None
    assert {"gold", "bronze", "page-a"} <= {tenant["id"] for tenant in everyone["data"]}


def test_keys_are_listed_a_page_at_a_time(server: LiveServer, admin: httpx.Client) -> None:
    made(admin.post("/admin/tenants", json={"id": "many-keys"}), 201)
    path = "/admin/tenants/many-keys/keys"
    ids = sorted(made(admin.post(path), 201)["public_id"] for _ in range(5))
    assert [key["public_id"] for key in made(admin.get(path))["data"]] == ids
    seen, after = [], ""
    while after is not None:
        page = made(admin.get(path, params={"limit": 2, "after": after}))
        seen.append([key["public_id"] for key in page["data"]])
        after = page["next"]
    assert seen == [ids[:2], ids[2:4], ids[4:]]
    refused(admin.get(path, params={"limit": 101}), 400, "invalid_value")


def test_changes_are_told_with_who_made_them(server: LiveServer, admin: httpx.Client) -> None:
    by = f"admin key {server.keys['admin'].split('-')[1]}"
    made(admin.post("/admin/tenants", json={"id": "audited"}), 201)
    made(admin.patch("/admin/tenants/audited", json={"weight": 4}))
    key = made(admin.post("/admin/tenants/audited/keys"), 201)["public_id"]
    made(admin.post(f"/admin/keys/{key}/revoke"))
    server.on_loop(lambda store: store.disable_tenant("audited"))  # by somebody else
    page = made(admin.get("/admin/audit", params={"limit": 2}))
    assert [(one["by"], one["did"], one["to"]) for one in page["data"]] == [
        ("unknown", "tenant changed", "audited"),
        (by, "key revoked", key),
    ]
    page = made(admin.get("/admin/audit", params={"limit": 3, "before": page["next"]}))
    assert [(one["by"], one["did"], one["how"]) for one in page["data"][1:]] == [
        (by, "tenant changed", {"weight": 4.0}),
        (by, "tenant created", {"weight": 1.0, "disabled": False}),
    ]
    refused(admin.get("/admin/audit", params={"before": "yesterday"}), 400, "invalid_value")


def test_every_setting_of_a_tenant_can_be_read_and_written(
    server: LiveServer, admin: httpx.Client
) -> None:
    made(admin.post("/admin/tenants", json={"id": "all-of-it"}), 201)
    samples = {"flag": True, "weight": 2.5, "count": 7, "money": 1.5, "priority": 9}
    values = {name: samples.get(s.kind) or s.values[0] for name, s in SETTINGS.items()}
    shown = made(admin.patch("/admin/tenants/all-of-it", json=values))
    assert {name: shown[name] for name in SETTINGS} == values


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "param"),
    [
        ("POST", "/admin/tenants", {}, 400, "invalid_value", "id"),
        ("POST", "/admin/tenants", {"id": "No Spaces"}, 400, "invalid_value", "id"),
        ("POST", "/admin/tenants", {"id": 7}, 400, "invalid_value", "id"),
        ("POST", "/admin/tenants", {"id": "x", "weight": 0}, 400, "invalid_value", "weight"),
        ("POST", "/admin/tenants", {"id": "gold"}, 409, "already_exists", None),
        ("POST", "/admin/tenants", {"id": "x", "wait": 1}, 400, "unknown_parameter", "wait"),
        ("PATCH", "/admin/tenants/gold", {"weight": None}, 400, "invalid_value", "weight"),
        ("PATCH", "/admin/tenants/gold", {"weight": "3"}, 400, "invalid_value", "weight"),
        ("PATCH", "/admin/tenants/gold", {"created": 3}, 400, "unknown_parameter", "created"),
        ("PATCH", "/admin/tenants/gold", {"admission": "best"}, 400, "invalid_value", "admission"),
        ("PATCH", "/admin/tenants/gold", {"queue_tokens": 0}, 400, "invalid_value", "queue_tokens"),
        ("PATCH", "/admin/tenants/nobody", {"weight": 3}, 404, "not_found", None),
        ("GET", "/admin/tenants/nobody", None, 404, "not_found", None),
        ("GET", "/admin/tenants/nobody/keys", None, 404, "not_found", None),
        ("POST", "/admin/tenants/nobody/keys", {}, 404, "not_found", None),
        ("POST", "/admin/tenants/gold/keys", {"expires": 5}, 400, "invalid_value", "expires"),
        ("POST", "/admin/tenants/gold/keys", {"scopes": []}, 400, "invalid_value", "scopes"),
        ("POST", "/admin/tenants/gold/keys", {"scopes": ["x"]}, 400, "invalid_value", "scopes[0]"),
        ("POST", "/admin/tenants/gold/keys", {"models": [" "]}, 400, "invalid_value", "models"),
        ("POST", "/admin/tenants/gold/keys", {"models": [A_KEY]}, 400, "invalid_value", "models"),
        ("PATCH", "/admin/keys/0123456789ab", {"disabled": True}, 404, "not_found", None),
        ("POST", "/admin/keys/0123456789ab/rotate", None, 404, "not_found", None),
        ("POST", "/admin/keys/x/rotate", {"overlap": -1}, 400, "invalid_value", "overlap"),
        ("POST", "/admin/keys/0123456789ab/revoke", None, 404, "not_found", None),
        ("GET", "/admin/tenants?limit=0", None, 400, "invalid_value", "limit"),
        ("GET", "/admin/tenants?limit=%ff", None, 400, "invalid_value", "limit"),
        ("GET", "/admin/nothing", None, 404, "not_found", None),
        ("DELETE", "/admin/tenants/gold", None, 405, "method_not_allowed", None),
    ],
)
def test_mistakes_name_what_is_wrong(
    admin: httpx.Client,
    method: str,
    path: str,
    body: object,
    status: int,
    code: str,
    param: str | None,
) -> None:
    error = refused(admin.request(method, path, json=body), status, code)
    assert error["param"] == param


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"queue_tokens": 10**12 + 1},
            "'queue_tokens' must be a whole number from 1 to 1000000000000, not 1000000000001.",
        ),
        (
            {"default_timeout_ms": 5, "max_timeout_ms": 3},
            "'default_timeout_ms' (5) is above max_timeout_ms (3).",
        ),
    ],
)
def test_a_setting_is_named_as_it_is_sent(admin: httpx.Client, body: object, message: str) -> None:
    error = refused(admin.patch("/admin/tenants/gold", json=body), 400, "invalid_value")
    assert error["message"] == message


def test_what_has_ended_cannot_be_changed(server: LiveServer, admin: httpx.Client) -> None:
    path = f"/admin/keys/{server.keys['revoked'].split('-')[1]}"
    refused(admin.patch(path, json={"disabled": False}), 409, "key_not_active")
    refused(admin.post(f"{path}/rotate"), 409, "key_not_active")
    assert made(admin.post(f"{path}/revoke"))["revoked"] is True  # again


def test_bodies_are_bounded_and_must_be_json(admin: httpx.Client) -> None:
    refused(admin.post("/admin/tenants", content=b"x" * 20_000), 413, "body_too_large")
    refused(admin.post("/admin/tenants", content=b"{"), 400, "invalid_json")
    refused(admin.post("/admin/tenants", content=b"[]"), 400, "invalid_json")


def write(server: LiveServer, record: str, field: str, text: str) -> None:
    """Past everything that would have a look at it."""

    async def written(client: Any) -> None:
        await client.hset(record, field, text)

    server.on_loop(lambda store: store.connection.call(written))


def test_damaged_records_are_told_beside_the_others_and_repaired(
    server: LiveServer, admin: httpx.Client
) -> None:
    for name in ("harm-a", "harm-b", "harm-c"):
        made(admin.post("/admin/tenants", json={"id": name}), 201)
    keys = [made(admin.post("/admin/tenants/harm-b/keys"), 201) for _ in range(2)]
    write(server, "wm:tenant:harm-b", "weight", "heavy")
    write(server, f"wm:key:{keys[0]['public_id']}", "digest", "none")

    first = made(admin.get("/admin/tenants", params={"after": "harm", "limit": 2}))
    assert [tenant["id"] for tenant in first["data"]] == ["harm-a"]
    (damaged,) = first["damaged"]
    assert (damaged["id"], first["next"]) == ("harm-b", "harm-b")
    assert "weight is 'heavy'" in damaged["message"]
    rest = made(admin.get("/admin/tenants", params={"after": "harm-b", "limit": 1}))
    assert [tenant["id"] for tenant in rest["data"]] == ["harm-c"]
    listed = made(admin.get("/admin/tenants/harm-b/keys"))
    assert [key["public_id"] for key in listed["data"]] == [keys[1]["public_id"]]
    assert [key["public_id"] for key in listed["damaged"]] == [keys[0]["public_id"]]

    told = refused(admin.get("/admin/tenants/harm-b"), 409, "record_damaged")["message"]
    assert "weight is 'heavy'" in told
    refused(admin.patch("/admin/tenants/harm-b", json={"concurrency": 1}), 409, "record_damaged")
    assert chat(server, keys[1]["key"]).json()["error"]["code"] == "store_unavailable"
    assert chat(server, server.keys["gold"]).status_code == 200
    assert made(admin.patch("/admin/tenants/harm-b", json={"weight": 2}))["weight"] == 2.0
    eventually(lambda: chat(server, keys[1]["key"]).status_code == 200)

    key = f"/admin/keys/{keys[0]['public_id']}"
    refused(admin.get(key), 409, "record_damaged")
    refused(admin.post(f"{key}/rotate"), 409, "record_damaged")
    assert made(admin.post(f"{key}/revoke"))["revoked"] is True
    assert made(admin.get("/admin/tenants/harm-b/keys"))["damaged"] == []
    refused(admin.get(key), 404, "not_found")
