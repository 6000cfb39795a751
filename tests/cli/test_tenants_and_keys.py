"""`watermaster tenants`, `keys` and `demo` against a real store."""

import asyncio
import re
import shlex
import stat
from pathlib import Path

import pytest

from gateway.cli.demo import base_url
from gateway.config import ServerSettings
from telemetry.clock import SystemClock
from tenants.auth import Authenticator, AuthError, AuthReason
from tenants.embedded import EmbeddedValkey
from tenants.model import Principal
from tenants.store import Store
from tests.cli.conftest import Run, parsed


def authenticate(raw: str) -> Principal:
    """As a server would, with the store in the current folder."""

    async def scenario() -> Principal:
        store = await Store.connect(url)
        try:
            return await Authenticator(store, SystemClock()).authenticate(raw)
        finally:
            await store.close()

    embedded = EmbeddedValkey(Path(".watermaster"))
    url = embedded.start()
    try:
        return asyncio.run(scenario())
    finally:
        embedded.stop()


def test_a_tenants_life(run: Run) -> None:
    run("tenants", "create", "acme", "--weight", "2.5", "--queue-tokens", "1000")
    shown = parsed(run("tenants", "show", "acme", "--json"))
    assert (shown["weight"], shown["queue_tokens"], shown["disabled"]) == (2.5, 1000, False)
    run("tenants", "update", "acme", "--queue-tokens", "0", "--max-max-tokens", "64")
    run("tenants", "disable", "acme")
    (listed,) = parsed(run("tenants", "list", "--json"))
    assert (listed["queue_tokens"], listed["max_max_tokens"]) == (None, 64)
    assert listed["disabled"] is True
    run("tenants", "update", "acme", "--enable")
    table = run("tenants", "list").stdout.splitlines()
    assert table[0].split()[:3] == ["TENANT", "WEIGHT", "DISABLED"]
    assert table[1].split()[:3] == ["acme", "2.5", "no"]


def test_a_tenants_choices_are_made_changed_and_given_back(run: Run) -> None:
    def choices() -> list[object]:
        shown = parsed(run("tenants", "show", "acme", "--json"))
        return [shown[name] for name in ("admission", "on_infeasible", "tpot_target_ms")]

    run("tenants", "create", "acme", "--admission", "goodput", "--tpot-target-ms", "50")
    assert choices() == ["goodput", None, 50]
    run("tenants", "update", "acme", "--on-infeasible", "degrade", "--admission", "feasible")
    assert choices() == ["feasible", "degrade", 50]
    run("tenants", "update", "acme", "--on-infeasible", "server", "--tpot-target-ms", "0")
    assert choices() == ["feasible", None, None]


def test_a_tenants_limits_and_budgets_are_set_and_removed(run: Run) -> None:
    run("tenants", "create", "acme", "--requests-per-minute", "60", "--money-per-day", "12.5")
    run("tenants", "update", "acme", "--concurrency", "4", "--tokens-per-month", "1000000")
    shown = parsed(run("tenants", "show", "acme", "--json"))
    limits = ("requests_per_minute", "concurrency", "tokens_per_month", "money_per_day")
    assert [shown[name] for name in limits] == [60, 4, 1000000, 12.5]
    run("tenants", "update", "acme", "--requests-per-minute", "0", "--money-per-day", "0")
    shown = parsed(run("tenants", "show", "acme", "--json"))
    assert [shown[name] for name in limits] == [None, 4, 1000000, None]
    columns = run("tenants", "list").stdout.splitlines()[0].split()
    assert columns == ["TENANT", "WEIGHT", "DISABLED", "CONCURRENCY", "TOKENS_PER_MONTH"]


def test_money_is_told_to_the_cent(run: Run) -> None:
    run("tenants", "create", "acme", "--money-per-month", "123456.78", "--weight", "1000000")
    shown = dict(line.split() for line in run("tenants", "show", "acme").stdout.splitlines())
    assert (shown["money_per_month"], shown["weight"]) == ("123456.78", "1000000")


def test_the_commands_of_the_document_run(run: Run) -> None:
    document = (Path(__file__).parents[2] / "docs/tenancy.md").read_text()
    text = "\n".join(re.findall(r"```sh\n(.*?)```", document, re.DOTALL)).replace("\\\n", " ")
    key = ""
    for line in filter(None, text.splitlines()):
        words = shlex.split(line, comments=True)[1:]
        if "KEY" in words and not key:
            key = parsed(run("keys", "list", "acme", "--json"))[-1]["public_id"]
        run(*(key if word == "KEY" else word for word in words))
    shown = parsed(run("tenants", "show", "acme", "--json"))
    assert (shown["concurrency"], shown["tokens_per_day"]) == (16, None)
    assert (shown["requests_per_minute"], shown["money_per_month"]) == (600, 250.0)


def test_a_keys_life(run: Run) -> None:
    run("tenants", "create", "acme")
    made = run("keys", "create", "acme", "--model", "smollm2-135m", "--expires-in", "30d")
    raw = made.stdout.strip()
    assert raw.startswith("wm-")
    assert raw not in made.stderr
    assert authenticate(raw).key.models == {"smollm2-135m"}

    (listed,) = parsed(run("keys", "list", "acme", "--json"))
    assert listed["expires"] - listed["created"] == pytest.approx(30 * 86400, abs=2)
    assert "digest" not in listed

    rotated = parsed(run("keys", "rotate", listed["public_id"], "--json"))
    assert authenticate(rotated["key"]).key.models == {"smollm2-135m"}
    run("keys", "revoke", rotated["key"])  # the whole key, pasted by mistake
    states = [line.split()[2] for line in run("keys", "list", "acme").stdout.splitlines()[1:]]
    assert sorted(states) == ["active", "revoked"]


def test_a_key_that_outlives_the_calendar_is_listed_and_shown(run: Run) -> None:
    """One such would hide all the others."""
    run("tenants", "create", "acme")
    raw = run("keys", "create", "acme", "--expires-in", "9999999d").stdout.strip()
    for listed in (run("keys", "list", "acme"), run("keys", "show", raw)):
        assert listed.stdout.splitlines()[-1].endswith("  after 9999")


def test_a_key_is_changed_disabled_and_enabled(run: Run) -> None:
    run("tenants", "create", "acme")
    raw = run("keys", "create", "acme", "--model", "m1", "--expires-in", "1h").stdout.strip()

    def shown() -> dict[str, object]:
        return parsed(run("keys", "show", raw, "--json"))

    run("keys", "update", raw, "--scope", "read", "--model", "m2", "--model", "m3")
    assert (shown()["scopes"], shown()["models"]) == (["read"], ["m2", "m3"])
    assert shown()["expires"] is not None
    run("keys", "update", raw, "--all-models", "--never-expires")
    assert (shown()["models"], shown()["expires"]) == ([], None)
    run("keys", "disable", raw)
    with pytest.raises(AuthError) as refused:
        authenticate(raw)
    assert refused.value.reason == AuthReason.DISABLED
    assert "disabled" in run("keys", "show", raw).stdout.split()
    run("keys", "update", raw, "--enable")
    assert authenticate(raw).key.scopes == {"read"}
    run("keys", "revoke", raw)
    assert "not active any more" in run("keys", "update", raw, "--enable", code=1).stderr


def opens(raw: str) -> bool:
    """Whether the admin API would accept it, with the store in the current folder."""

    async def scenario() -> bool:
        store = await Store.connect(url)
        try:
            return await store.admin_key.is_opened_by(raw)
        finally:
            await store.close()

    embedded = EmbeddedValkey(Path(".watermaster"))
    url = embedded.start()
    try:
        return asyncio.run(scenario())
    finally:
        embedded.stop()


def test_the_admin_key_is_issued_replaced_and_ended(run: Run) -> None:
    first = run("admin", "key").stdout.strip()
    assert opens(first)
    second = parsed(run("admin", "key", "--json"))["key"]
    assert (opens(first), opens(second)) == (False, True)
    run("admin", "close")
    assert not opens(second)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["tenants", "show", "nobody"], 1, "error: there is no tenant 'nobody'"),
        (["tenants", "create", "No Spaces"], 1, "error: 'No Spaces' is not a tenant id"),
        (["tenants", "create", "x", "--weight", "nan"], 1, "error: weight must be a number"),
        (["tenants", "create", "x", "--queue-tokens", "0"], 1, "queue_tokens must be a whole"),
        (["tenants", "create", "x", "--money-per-day", "-1"], 1, "must be an amount of money"),
        (["tenants", "update", "x"], 2, "nothing to change"),
        (["tenants", "create", "x", "--admission", "best"], 2, "'accept', 'feasible', 'goodput'"),
        (["keys", "create", "nobody"], 1, "error: there is no tenant 'nobody'"),
        (["keys", "create", "x", "--model", "auto"], 1, "error: 'auto' is no model"),
        (["keys", "create", "x", "--expires-in", "soon"], 2, "write 90s, 15m, 12h or 30d"),
        (["keys", "update", "0123456789ab"], 2, "nothing to change"),
        (["keys", "update", "x", "--all-models", "--model", "m"], 2, "contradict each other"),
        (["keys", "update", "0123456789ab", "--enable"], 1, "error: there is no key"),
        (["keys", "revoke", "0123456789ab"], 1, "error: there is no key '0123456789ab'"),
        (["tenants", "list", "--config", "gone.toml"], 2, "there is no configuration file gone"),
    ],
)
def test_mistakes_get_one_sentence(
    run: Run, arguments: list[str], code: int, sentence: str
) -> None:
    result = run(*arguments, code=code)
    assert sentence in result.stderr
    assert "Traceback" not in result.output


def test_creating_twice_is_refused(run: Run) -> None:
    run("tenants", "create", "acme")
    assert "exists already" in run("tenants", "create", "acme", code=1).stderr


def test_a_store_that_is_away_has_its_own_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATERMASTER_REDIS_URL", "unix:///nowhere.sock")
    monkeypatch.setattr("gateway.cli.store.PATIENCE", 0.1)
    assert run("tenants", "list", code=4).stderr.startswith("error: the store does not answer")


def test_demo_keys_work_and_stay_valid(run: Run, tmp_path: Path) -> None:
    run("demo")
    file = tmp_path / ".watermaster/demo.env"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    first = file.read_text()
    values = dict(line.removeprefix("export ").split("=") for line in first.splitlines())
    assert set(values) == {"WM_GOLD_KEY", "WM_BRONZE_KEY", "WM_URL"}
    assert values["WM_URL"] == "http://127.0.0.1:8000"
    gold, bronze = authenticate(values["WM_GOLD_KEY"]), authenticate(values["WM_BRONZE_KEY"])
    assert (gold.tenant.id, gold.tenant.weight) == ("gold", 3.0)
    assert (bronze.tenant.id, bronze.tenant.weight) == ("bronze", 1.0)

    run("demo")
    assert file.read_text() == first


def test_demo_replaces_a_key_that_no_longer_works(run: Run, tmp_path: Path) -> None:
    run("demo")
    file = tmp_path / ".watermaster/demo.env"
    before = dict(line.removeprefix("export ").split("=") for line in file.read_text().splitlines())
    run("keys", "revoke", before["WM_GOLD_KEY"])
    report = run("demo", "--json")
    after = dict(line.removeprefix("export ").split("=") for line in file.read_text().splitlines())
    assert after["WM_GOLD_KEY"] != before["WM_GOLD_KEY"]
    assert after["WM_BRONZE_KEY"] == before["WM_BRONZE_KEY"]
    assert authenticate(after["WM_GOLD_KEY"]).tenant.id == "gold"
    assert after["WM_GOLD_KEY"] not in report.output


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::1", "http://[::1]:8000"),
        ("gateway.example", "http://gateway.example:8000"),
    ],
)
def test_the_url_given_to_callers(host: str, url: str) -> None:
    assert base_url(ServerSettings(host=host)) == url


def test_changes_on_the_command_line_are_told(run: Run) -> None:
    run("tenants", "create", "acme")
    raw = run("keys", "create", "acme").stdout.strip()
    run("tenants", "update", "acme", "--weight", "3")
    changed, issued, created = parsed(run("audit", "--json"))
    assert (changed["did"], changed["how"]) == ("tenant changed", {"weight": 3.0})
    assert (issued["did"], issued["to"]) == ("key issued", raw.split("-")[1])
    assert created["to"] == "acme"
    assert re.fullmatch(r"cli \S+@\S+", created["by"])
    table = run("audit", "--limit", "2").stdout
    assert table.splitlines()[0].split() == ["AT", "BY", "DID", "TO", "HOW"]
    assert "weight=3.0" in table
    assert raw.split("-")[2] not in table


def test_damaged_records_are_told_beside_the_others_and_repaired(run: Run) -> None:
    async def change(url: str, record: str, field: str) -> None:
        store = await Store.connect(url)
        await store.connection.call(lambda client: client.hset(record, field, b"\xff"))
        await store.close()

    def damage(record: str, field: str) -> None:
        valkey = EmbeddedValkey(Path(".watermaster"))
        try:
            asyncio.run(change(valkey.start(), record, field))
        finally:
            valkey.stop()

    for name in ("acme", "zinc"):
        run("tenants", "create", name)
    keys = [parsed(run("keys", "create", "acme", "--json"))["public_id"] for _ in range(2)]
    damage("wm:tenant:acme", "weight")
    damage(f"wm:key:{keys[0]}", "scopes")

    listed = run("tenants", "list", code=4)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["TENANT", "zinc"]
    assert listed.stderr.startswith("error: the record of the tenant 'acme' is damaged: weight is")
    assert [one["id"] for one in parsed(run("tenants", "list", "--json", code=4))] == ["zinc"]
    for command in ("show", "disable"):
        assert "weight is" in run("tenants", command, "acme", code=4).stderr
    run("tenants", "update", "acme", "--weight", "2")
    assert parsed(run("tenants", "show", "acme", "--json"))["weight"] == 2.0

    listed = run("keys", "list", "acme", code=4)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["KEY", keys[1]]
    assert f"key '{keys[0]}' is damaged: unknown scope" in listed.stderr
    run("keys", "update", keys[0], "--scope", "read")
    assert len(parsed(run("keys", "list", "acme", "--json"))) == 2
    damage(f"wm:key:{keys[0]}", "created")
    run("keys", "revoke", keys[0])
    assert len(parsed(run("keys", "list", "acme", "--json"))) == 1
