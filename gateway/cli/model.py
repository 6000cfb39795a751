"""`watermaster model`: the models on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.common import (
    CliError,
    Exit,
    config_option,
    json_option,
    load_config,
    note,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from engine.runtime.store import ModelStore


@click.group()
def model() -> None:
    """Download and list models."""


@model.command()
@click.argument("name", default="smollm2-135m", metavar="[NAME]")
@config_option
@json_option
def pull(name: str, config_file: Path | None, as_json: bool) -> None:
    """Download a model and convert it once. NAME is smollm2-135m unless given."""
    from engine.runtime.store import ModelStoreError

    try:
        path = _store(config_file).pull(name, note)
    except ModelStoreError as error:
        raise CliError(str(error), Exit.MODEL) from None
    if as_json:
        print_json({"name": name, "path": str(path)})
    else:
        click.echo(f"{name} is ready in {path}")


@model.command("list")
@config_option
@json_option
def list_models(config_file: Path | None, as_json: bool) -> None:
    """List the models that are installed."""
    from dataclasses import asdict

    found = [asdict(installed) for installed in _store(config_file).list()]
    if as_json:
        print_json([{key: _plain(value) for key, value in row.items()} for row in found])
    elif found:
        print_table([key.upper() for key in found[0]], [list(row.values()) for row in found])
    else:
        note("no models yet: `watermaster model pull` downloads the default one")


def _store(config_file: Path | None) -> "ModelStore":
    from gateway.model_source import open_model_store

    return open_model_store(load_config(config_file).settings.model)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
