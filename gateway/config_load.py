"""Fills the settings: defaults, then the TOML file, then `WATERMASTER_*`, then the command line.

`WATERMASTER_SERVER_PORT` sets `port` of `[server]`: section, underscore, key. Three names are
shorter: `WATERMASTER_REDIS_URL` for `store.url`, `WATERMASTER_CACHE` for `model.cache`, and
`WATERMASTER_CONFIG` for the file itself. An empty variable counts as absent.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gateway.config import Settings
from gateway.config_section import Section

PREFIX = "WATERMASTER_"
DEFAULT_FILE = Path("watermaster.toml")
ALIASES = {"WATERMASTER_REDIS_URL": "store.url", "WATERMASTER_CACHE": "model.cache"}
FILE_VARIABLE = "WATERMASTER_CONFIG"

# Kubernetes sets these in every pod when a service is called "watermaster"; they are not for us.
_SERVICE_LINK = re.compile(r"WATERMASTER_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP)\w*)?)")

Values = dict[str, dict[str, object]]


class ConfigError(Exception):
    """The configuration cannot be used; the message says which key and what to do."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """`sources` says where each key (`server.port`) that is not at its default comes from."""

    settings: Settings
    sources: dict[str, str]


def sections() -> dict[str, type[Section]]:
    """The sections by name, in the order of the file."""
    return {
        name: cast("type[Section]", field.annotation)
        for name, field in Settings.model_fields.items()
    }


def fields() -> dict[str, FieldInfo]:
    """Every key (`server.port`) with its definition."""
    return {
        f"{section}.{key}": field
        for section, model in sections().items()
        for key, field in model.model_fields.items()
    }


def variables() -> dict[str, str]:
    """Every environment variable and the key it sets; a short name replaces the regular one."""
    short = {key: name for name, key in ALIASES.items()}
    return {short.get(key, PREFIX + key.upper().replace(".", "_")): key for key in fields()}


def load(
    path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Loaded:
    """Read and check the configuration.

    `path` None takes the file that `WATERMASTER_CONFIG` names, or `watermaster.toml` in the
    current folder if there is one. `overrides` maps keys (`server.port`) to values given on the
    command line. ConfigError names every key that is unknown or out of range.
    """
    environment = environment or {}
    named = path or (Path(environment[FILE_VARIABLE]) if environment.get(FILE_VARIABLE) else None)
    file = named or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    values: Values = {}
    sources: dict[str, str] = {}
    if file is not None:
        values = _read(file)
        sources = {f"{s}.{k}": str(file) for s, table in values.items() for k in table}
    for variable, key, value in _from_environment(environment):
        _set(values, key, value)
        sources[key] = variable
    for key, value in (overrides or {}).items():
        _set(values, key, value)
        sources[key] = "--" + key.partition(".")[2].replace("_", "-")
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        problems = [_sentence(detail, sources) for detail in error.errors(include_url=False)]
        raise ConfigError("\n".join(problems)) from None
    return Loaded(settings, sources)


def _read(file: Path) -> Values:
    """The file's tables; unknown names are refused here, with the nearest known one."""
    try:
        with file.open("rb") as stream:
            document = tomllib.load(stream)
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    problems: list[str] = []
    known = sections()
    for name, table in document.items():
        if name not in known:
            home = [key for key in fields() if key.endswith("." + name)]
            hint = f"; write it under [{home[0].partition('.')[0]}]" if home else ""
            problems.append(f"unknown key {name!r} in {file}{hint or _suggest(name, known)}")
        elif not isinstance(table, dict):
            problems.append(f"{name} in {file} must be a table: start it with [{name}]")
        else:
            keys = known[name].model_fields
            problems += [
                f"unknown key '{name}.{key}' in {file}{_suggest(key, keys, name + '.')}"
                for key in table
                if key not in keys
            ]
    if problems:
        raise ConfigError("\n".join(problems))
    return document


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, str, object]]:
    """(variable, key, value) for every variable of ours that is set."""
    known = variables()
    found: list[tuple[str, str, object]] = []
    problems: list[str] = []
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or not text or variable == FILE_VARIABLE:
            continue
        if variable not in known:
            if not _SERVICE_LINK.fullmatch(variable):
                near = _suggest(variable.removeprefix(PREFIX), _unprefixed(known), PREFIX)
                problems.append(f"unknown variable {variable}{near}")
            continue
        key = known[variable]
        try:
            found.append((variable, key, _convert(text, fields()[key])))
        except ValidationError as error:
            problems.append(_describe(variable, error.errors(include_url=False)[0]))
    if problems:
        raise ConfigError("\n".join(problems))
    return found


def _convert(text: str, field: FieldInfo) -> object:
    """The text as the key's type; ranges are checked later, with everything else."""
    adapter: TypeAdapter[Any] = TypeAdapter(cast("type", field.annotation))
    return adapter.validate_strings(text)


def _set(values: Values, key: str, value: object) -> None:
    section, _, name = key.partition(".")
    values.setdefault(section, {})[name] = value


def _sentence(detail: ErrorDetails, sources: Mapping[str, str]) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    source = sources.get(key)
    return _describe(key, detail) + (f" (set by {source})" if source else "")


def _describe(name: str, detail: ErrorDetails) -> str:
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.partition(", unable to parse")[0]
    if detail["type"] == "value_error":  # ours; it says what may be said about the value
        return f"{name}: {message}" if name else message
    return f"{name} {message}, not {detail['input']!r}"


def _unprefixed(names: Iterable[str]) -> list[str]:
    """What differs between our variables; the shared prefix would make them all look alike."""
    return [name.removeprefix(PREFIX) for name in names]


def _suggest(name: str, known: Iterable[str], prefix: str = "") -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{prefix}{near[0]}'?" if near else ""
