"""The written forms of the configuration, generated so that they cannot drift from the models."""

import json
from pathlib import Path
from textwrap import wrap
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from gateway.config_load import Loaded, sections, variables
from telemetry.secrets import masked

_INTRODUCTION = """\
# Configuration

<!-- Written by `watermaster config docs`; edit gateway/config.py instead. -->

Every key has a default, so that `watermaster serve` needs no file. Values are taken from, in \
rising order: the defaults below, the TOML file (`--config FILE`, or `WATERMASTER_CONFIG`, or \
`watermaster.toml` in the current folder), environment variables, options of the command line. \
`watermaster config show` prints what is in force and where it comes from; `watermaster config \
check` only says whether it is valid; `watermaster config example` prints a file with every key.

Unknown keys and unknown `WATERMASTER_*` variables are refused by name. An empty variable counts \
as absent. The variables that Kubernetes sets for a service called `watermaster` \
(`WATERMASTER_SERVICE_HOST`, `WATERMASTER_PORT_8000_TCP`, …) are ignored.
"""


def markdown() -> str:
    """The text of `docs/configuration.md`."""
    names = {key: variable for variable, key in variables().items()}
    parts = [_INTRODUCTION]
    for section, model in sections().items():
        parts.append(f"## `[{section}]`\n")
        parts.append(f"{model.__doc__}\n")
        parts.append("| key | default | variable | meaning |\n| --- | --- | --- | --- |")
        for key, field in model.model_fields.items():
            meaning = _prose(field) + _bounds(field)
            variable = names[f"{section}.{key}"]
            parts.append(f"| `{key}` | {_default(field)} | `{variable}` | {meaning} |")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def example() -> str:
    """A TOML file with every key, commented out at its default."""
    lines = ["# Every key at its default. Uncomment what you change."]
    for section, model in sections().items():
        lines += ["", f"[{section}]"]
        for key, field in model.model_fields.items():
            value = "…" if field.default is None else _toml(field.default)
            lines += [*wrap(_prose(field), 97, initial_indent="# ", subsequent_indent="# ")]
            lines += [f"# {key} = {value}", ""]
        lines.pop()
    return "\n".join(lines) + "\n"


def effective(loaded: Loaded) -> dict[str, dict[str, object]]:
    """Value and source of every key, JSON-ready; a password in a URL is left out."""
    rows: dict[str, dict[str, object]] = {}
    for section, table in loaded.settings.model_dump(mode="json").items():
        for key, value in table.items():
            name = f"{section}.{key}"
            shown = hide_password(value) if isinstance(value, str) else value
            rows[name] = {"value": shown, "source": loaded.sources.get(name, "default")}
    return rows


def hide_password(url: str) -> str:
    """The URL with passwords among its options, and whatever stands before its `@`, replaced."""
    scheme, separator, rest = masked(url).partition("://")
    before, at, place = rest.rpartition("@")
    return f"{scheme}{separator}{'***' if before else ''}{at}{place}"


def _prose(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _default(field: FieldInfo) -> str:
    return "" if field.default is None else f"`{_toml(field.default)}`"


def _toml(value: object) -> str:
    return json.dumps(str(value) if isinstance(value, Path) else value)


def _bounds(field: FieldInfo) -> str:
    """The allowed values, in words."""
    if get_origin(field.annotation) is Literal:
        return f" One of {', '.join(f'`{choice}`' for choice in get_args(field.annotation))}."
    limits = {
        name: getattr(rule, name)
        for rule in _rules(field)
        for name in ("ge", "gt", "le", "lt")
        if getattr(rule, name, None) is not None
    }
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    text = ", ".join(f"{words[name]} {limit}" for name, limit in limits.items())
    return f" ({text[0].upper()}{text[1:]}.)" if text else ""


def _rules(field: FieldInfo) -> list[object]:
    """What holds for a value, also where the key may be absent and so has no value at all."""
    parts = [extra for part in get_args(field.annotation) for extra in get_args(part)[1:]]
    inner = [rule for part in parts if isinstance(part, FieldInfo) for rule in part.metadata]
    return [*field.metadata, *inner]
