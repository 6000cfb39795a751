"""`watermaster admin`: the key of the admin API."""

from pathlib import Path

import click

from gateway.cli.common import config_option, json_option, load_config, note, print_json
from gateway.cli.store import with_store


@click.group()
def admin() -> None:
    """Open and close the admin API (/admin/...), by its key."""


@admin.command("key")
@config_option
@json_option
def issue(config_file: Path | None, as_json: bool) -> None:
    """Issue the admin key, in place of the one before. It is printed once and stored nowhere."""
    settings = load_config(config_file).settings
    raw = with_store(settings.store, lambda store: store.admin_key.issue())
    if as_json:
        print_json({"key": raw})
        return
    click.echo(raw)
    note("This is the only time the key is shown. An admin key from before has ended.")


@admin.command("close")
@config_option
def close(config_file: Path | None) -> None:
    """End the admin key; the admin API answers nobody until another is issued."""
    settings = load_config(config_file).settings
    with_store(settings.store, lambda store: store.admin_key.revoke())
    click.echo("the admin API is closed")
