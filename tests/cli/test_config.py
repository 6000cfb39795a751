"""The configuration: where values come from, and what is said about a wrong one."""

import re
from dataclasses import fields as dataclass_fields
from pathlib import Path

import pytest

from engine.core.config import KernelConfig
from gateway import config_docs
from gateway.config import Settings
from gateway.config_load import ConfigError, Loaded, load
from policies.config import PolicyConfig
from tenants.prices import Price

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def from_text(text: str, environment: dict[str, str] | None = None, **overrides: object) -> Loaded:
    Path("some.toml").write_text(text)
    keyed = {key.replace("__", "."): value for key, value in overrides.items()}
    return load(Path("some.toml"), environment, keyed)


def refusal(text: str = "", environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        from_text(text, environment)
    return str(caught.value)


def test_defaults_need_no_file() -> None:
    loaded = load()
    assert loaded.sources == {}
    assert (loaded.settings.server.host, loaded.settings.server.port) == ("127.0.0.1", 8000)


def test_later_sources_win() -> None:
    text = '[server]\nport = 1111\nhost = "0.0.0.0"\ndrain_grace = 5\n'
    environment = {"WATERMASTER_SERVER_PORT": "2222", "WATERMASTER_SERVER_DRAIN_GRACE": "7.5"}
    loaded = from_text(text, environment, server__port=3333)
    server = loaded.settings.server
    assert (server.host, server.port, server.drain_grace) == ("0.0.0.0", 3333, 7.5)
    assert loaded.sources == {
        "server.host": "some.toml",
        "server.drain_grace": "WATERMASTER_SERVER_DRAIN_GRACE",
        "server.port": "--port",
    }


def test_the_second_model_costs_as_much_as_the_first_unless_said_otherwise() -> None:
    text = "[prices]\nprompt = 1.0\ncached = 0.5\noutput = 2.0\nfallback_output = 3.0\n"
    prices = from_text(text).settings.prices
    assert prices.of_model() == Price(1.0, 0.5, 2.0)
    assert prices.of_fallback() == Price(1.0, 0.5, 3.0)


def test_the_file_is_found_where_the_documentation_says() -> None:
    Path("watermaster.toml").write_text("[server]\nport = 1111\n")
    Path("other.toml").write_text("[server]\nport = 2222\n")
    assert load().settings.server.port == 1111
    assert load(None, {"WATERMASTER_CONFIG": "other.toml"}).settings.server.port == 2222
    assert load(Path("watermaster.toml"), {"WATERMASTER_CONFIG": "x"}).settings.server.port == 1111


def test_a_path_may_begin_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    settings = load(None, {"WATERMASTER_ENGINE_COMMAND_LOG": "~/commands"}).settings
    assert settings.engine.command_log == Path("/home/somebody/commands")


def test_short_variables_and_empty_ones() -> None:
    environment = {
        "WATERMASTER_REDIS_URL": "redis://localhost:1/0",
        "WATERMASTER_CACHE": "/models",
        "WATERMASTER_SERVER_PORT": "",
        "WATERMASTER_KERNEL_KV_MEMORY": "268435456",
    }
    settings = load(None, environment).settings
    assert settings.store.url == "redis://localhost:1/0"
    assert settings.model.cache == Path("/models")
    assert settings.server.port == 8000
    assert settings.kernel.kv_memory == 1 << 28


def test_variables_of_a_kubernetes_service_are_not_ours() -> None:
    names = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8000_TCP_ADDR"]
    assert load(None, {f"WATERMASTER_{name}": "10.0.0.1" for name in names}).sources == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[server]\nprt = 1", "unknown key 'server.prt' in some.toml; did you mean 'server.port'?"),
        ("[sever]\nport = 1", "unknown key 'sever' in some.toml; did you mean 'server'?"),
        ("port = 1", "unknown key 'port' in some.toml; write it under [server]"),
        ("[server]\nzzz = 1", "unknown key 'server.zzz' in some.toml"),
        ("server = 1", "server in some.toml must be a table: start it with [server]"),
        (
            "[server]\nport = 65536",
            "server.port must be less than or equal to 65535, not 65536 (set by some.toml)",
        ),
        ('[server]\nport = "1"', "server.port must be a valid integer, not '1' (set by some.toml)"),
        (
            "[server]\nport = true",
            "server.port must be a valid integer, not True (set by some.toml)",
        ),
        (
            "[kernel]\nkv_reserve = nan",
            "kernel.kv_reserve must be less than 1, not nan (set by some.toml)",
        ),
        (
            '[model]\ndtype = "f16"',
            "model.dtype must be 'auto', 'bf16', 'fp16' or 'fp32', not 'f16' (set by some.toml)",
        ),
        (
            '[model]\nkv_dtype = "int8"',
            "model.kv_dtype must be 'auto', 'fp8' or 'fp8_e5m2', not 'int8' (set by some.toml)",
        ),
    ],
)
def test_what_is_said_about_a_wrong_file(text: str, sentence: str) -> None:
    assert refusal(text) == sentence


def test_keys_that_contradict_each_other_are_named() -> None:
    assert re.match(
        r"kernel: max_step_tokens\b.*\bmax_running\b.*\b1000\b",
        refusal("[kernel]\nmax_running = 1000"),
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '[admission]\non_infeasible = "route"',
            "admission.on_infeasible is route, but model.fallback names no model",
        ),
        (
            '[model]\nfallback = "x"\nfallback_id = "smollm2-135m"',
            "model.id and model.fallback_id must differ, and are 'smollm2-135m'",
        ),
        ('[model]\nid = "auto"', "model.id and model.fallback_id must not be 'auto'"),
    ],
)
def test_sections_that_contradict_each_other_are_named(text: str, sentence: str) -> None:
    assert refusal(text) == sentence


def test_every_wrong_key_is_named_at_once() -> None:
    assert refusal("[server]\nprt = 1\n[log]\nlevl = 2").count("unknown key") == 2


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("SERVER_PRT", "1", "; did you mean 'WATERMASTER_SERVER_PORT'?"),
        ("FOO", "1", "unknown variable WATERMASTER_FOO"),
        ("SERVER_PORT", "x", "WATERMASTER_SERVER_PORT must be a valid integer, not 'x'"),
        ("SERVER_PORT", "-1", "server.port must be greater than or equal to 0, not -1 (set by"),
        (
            *("STORE_DATA_DIR", "~nobody-here/x"),
            "store.data_dir: begins with ~nobody-here, which is no home folder here",
        ),
        ("CONFIG", "gone.toml", "there is no configuration file gone.toml"),
    ],
)
def test_what_is_said_about_a_wrong_variable(variable: str, value: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(None, {f"WATERMASTER_{variable}": value})


def test_a_broken_file_is_named() -> None:
    assert refusal("x =").startswith("some.toml is not valid TOML: ")


def test_a_password_is_never_shown() -> None:
    assert "hunter2" not in refusal('[store]\nurl = "http://u:hunter2@h"')
    shown = config_docs.effective(from_text('[store]\nurl = "redis://u:hunter2@h:1/0"'))
    assert shown["store.url"] == {"value": "redis://***@h:1/0", "source": "some.toml"}
    shown = config_docs.effective(from_text('[telemetry]\nendpoint = "https://u:hunter2@h/v1"'))
    assert shown["telemetry.endpoint"]["value"] == "https://***@h/v1"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("unix:///s?db=3&password=hunter@2&x=1", "unix:///s?db=3&password=***&x=1"),
        ("rediss://u:hunter2@h:1/0?ssl_password=hunter2", "rediss://***@h:1/0?ssl_password=***"),
        ("unix://:hunter2@/s?db=1", "unix://***@/s?db=1"),
        ("redis://h:1/0?db=3", "redis://h:1/0?db=3"),
        ("", ""),
    ],
)
def test_a_password_among_the_options_of_a_url_is_not_shown(url: str, shown: str) -> None:
    assert config_docs.hide_password(url) == shown


def test_kernel_defaults_are_the_engines_own() -> None:
    """A default that differs from the engine's would make benches and the server disagree."""
    config = Settings().kernel.to_config(vocab_size=9, model_context=2048)
    assert config == KernelConfig(num_blocks=1, vocab_size=9, max_context=2048)
    assert config.tombstone_ttl == 600_000_000_000
    elsewhere = {"num_blocks", "host_blocks", "vocab_size", "policy"}  # from other settings
    not_yet = {
        "draft_tokens",
        "max_in_flight",
        "host_block_ns",
        "host_overlap",
        "prefix_cache",
    }  # no key
    fields = {field.name for field in dataclass_fields(config)}
    assert fields - set(type(Settings().kernel).model_fields) == elsewhere | not_yet


def test_policy_defaults_are_the_policies_own() -> None:
    assert Settings().policy.to_config(Settings().admission) == PolicyConfig()


def test_the_context_is_the_smaller_of_ours_and_the_models() -> None:
    settings = from_text("[kernel]\nmax_context = 4096").settings
    assert settings.kernel.to_config(model_context=2048).max_context == 2048
    assert settings.kernel.to_config(model_context=8192).max_context == 4096


def test_the_written_forms_are_up_to_date() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == config_docs.markdown()
    assert (ROOT / "watermaster.example.toml").read_text() == config_docs.example()


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("kernel.block_size", "0", "(At least 1, at most 1024.)"),
        ("policy.ageing", "0.0", "(More than 0.)"),
        ("prices.cached", "-1.0", "(At least 0, at most 1000000.0.)"),
        ("server.port", "65536", "(At least 0, at most 65535.)"),
    ],
)
def test_the_reference_says_what_range_a_value_must_be_in(
    key: str, value: str, sentence: str
) -> None:
    section, name = key.split(".")
    assert key in refusal(f"[{section}]\n{name} = {value}")
    of_section = config_docs.markdown().partition(f"## `[{section}]`")[2]
    (row,) = re.findall(rf"(?m)^\| `{name}` \|.*$", of_section.partition("\n## ")[0])
    assert row.endswith(f"{sentence} |")


def test_the_example_is_the_defaults() -> None:
    bare = config_docs.example()
    uncommented = re.sub(r"(?m)^# (\w+ = (?!…))", r"\1", bare)
    assert uncommented.count("\n# ") < bare.count("\n# ")
    assert from_text(bare).settings == from_text(uncommented).settings == Settings()
