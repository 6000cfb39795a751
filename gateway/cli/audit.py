"""`watermaster audit`: what was changed of tenants and keys."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.common import config_option, json_option, load_config, print_json, print_table
from gateway.cli.store import with_store

if TYPE_CHECKING:
    from tenants.audit import Change


@click.command()
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    metavar="N",
    help="The last so many changes.",
)
@config_option
@json_option
def audit(limit: int, config_file: Path | None, as_json: bool) -> None:
    """Show what was changed of tenants and keys, by whom and when; the newest first.

    Changes over /admin and by this command line alike. The store keeps the last 10,000.
    """
    settings = load_config(config_file).settings
    found = with_store(settings.store, lambda store: store.audit.read(limit))
    if as_json:
        print_json([change.describe() for change in found])
    else:
        print_table(("AT", "BY", "DID", "TO", "HOW"), [_row(change) for change in found])


def _row(change: "Change") -> tuple[str, ...]:
    at = datetime.fromtimestamp(change.at, UTC).isoformat()
    how = ", ".join(f"{name}={json.dumps(value)}" for name, value in change.how.items())
    return (at, change.by, change.did, change.to, how)
