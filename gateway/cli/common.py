"""What the commands share: options, output for people or programs, and errors with exit codes."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gateway.config_load import Loaded

F = TypeVar("F", bound=Callable[..., Any])


class Exit(IntEnum):
    """Exit codes, as the command's help lists them."""

    REFUSED = 1
    CONFIGURATION = 2
    MODEL = 3
    STORE = 4
    PORT = 5


class CliError(click.ClickException):
    """One sentence for the user and an exit code; no traceback."""

    def __init__(self, message: str, code: Exit = Exit.REFUSED) -> None:
        super().__init__(message)
        self.exit_code = int(code)  # type: ignore[misc] # click reads it from the instance

    def show(self, file: Any = None) -> None:
        for line in self.message.splitlines():
            click.echo(f"error: {line}", file=file or sys.stderr)


def config_option(command: F) -> F:
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Configuration file.  [default: watermaster.toml, where there is one]",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def load_config(
    config_file: Path | None, overrides: Mapping[str, object] | None = None
) -> "Loaded":
    """The configuration in force; options that were not given are left out of `overrides`."""
    from gateway.config_load import ConfigError, load

    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    try:
        return load(config_file, os.environ, given)
    except ConfigError as error:
        raise CliError(str(error), Exit.CONFIGURATION) from None


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns of text; an absent value is a dash, so that every row has all columns."""
    lines = [tuple(header), *(tuple(_cell(value) for value in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def tell_damaged(damaged: Mapping[str, str]) -> None:
    """After a list of the others: what to know and do about each record that cannot be read."""
    if damaged:
        raise CliError("\n".join(damaged.values()), Exit.STORE)


def note(message: str) -> None:
    """Progress and remarks go to standard error, so that output stays clean for programs."""
    click.echo(message, err=True)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.12g}"  # money to the cent, also in bills of millions
    return str(value)
