"""`watermaster keys`: what tenants present to be let in."""

import re
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.common import (
    config_option,
    json_option,
    load_config,
    note,
    print_json,
    print_table,
    tell_damaged,
)
from gateway.cli.store import with_store

if TYPE_CHECKING:
    from tenants.model import ApiKey
    from tenants.store import IssuedKey

_HEADER = ("KEY", "TENANT", "STATE", "SCOPES", "MODELS", "CREATED", "EXPIRES")
_LAST_DATE = 253_402_300_799  # the last second that a date can tell
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _duration(text: str) -> int:
    """Seconds from text such as `90s`, `15m`, `12h`, `30d`."""
    form = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if form is None:
        raise click.BadParameter(f"{text!r} is not a duration; write 90s, 15m, 12h or 30d")
    return int(form[1]) * _UNITS[form[2]]


@click.group()
def keys() -> None:
    """Create, list, change, rotate and revoke API keys."""


@keys.command()
@click.argument("tenant_id", metavar="TENANT")
@click.option("--scope", "scopes", multiple=True, help="inference or read.  [default: inference]")
@click.option("--model", "models", multiple=True, help="Model it may use.  [default: all]")
@click.option("--expires-in", type=_duration, metavar="TIME", help="Lifetime, such as 30d.")
@config_option
@json_option
def create(
    tenant_id: str,
    scopes: tuple[str, ...],
    models: tuple[str, ...],
    expires_in: int | None,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Issue a key to a tenant. The key is printed once and stored nowhere."""
    settings = load_config(config_file).settings
    issued = with_store(
        settings.store,
        lambda store: store.create_key(
            tenant_id,
            scopes=scopes or ("inference",),
            models=models,
            expires=_end(expires_in),
        ),
    )
    _report_issued(issued, as_json)


@keys.command("list")
@click.argument("tenant_id", metavar="TENANT")
@config_option
@json_option
def list_keys(tenant_id: str, config_file: Path | None, as_json: bool) -> None:
    """List a tenant's keys, by their public ids; secrets are not stored.

    Records that are damaged are told apart, with exit code 4; `keys revoke` ends such a key.
    """
    settings = load_config(config_file).settings
    listing = with_store(settings.store, lambda store: store.list_keys(tenant_id))
    oldest_first = sorted(listing.found.values(), key=lambda key: (key.created, key.public_id))
    if as_json:
        print_json([key.describe() for key in oldest_first])
    else:
        print_table(_HEADER, [_row(key) for key in oldest_first])
    tell_damaged(listing.damaged)


@keys.command()
@click.argument("public_id", metavar="KEY")
@config_option
@json_option
def show(public_id: str, config_file: Path | None, as_json: bool) -> None:
    """Show one key. KEY is its public id (see `keys list`), here and in all commands."""
    settings = load_config(config_file).settings
    key = with_store(settings.store, lambda store: store.get_key(_public_id(public_id)))
    _report(key, as_json)


@keys.command()
@click.argument("public_id", metavar="KEY")
@click.option("--scope", "scopes", multiple=True, help="inference or read; replaces the old ones.")
@click.option("--model", "models", multiple=True, help="Model it may use; replaces the old ones.")
@click.option("--all-models", is_flag=True, help="Let it use every model.")
@click.option("--expires-in", type=_duration, metavar="TIME", help="Lifetime from now on.")
@click.option("--never-expires", is_flag=True, help="Let it work until it is revoked.")
@click.option("--enable", is_flag=True, help="Accept a disabled key again.")
@config_option
@json_option
def update(
    public_id: str,
    scopes: tuple[str, ...],
    models: tuple[str, ...],
    all_models: bool,
    expires_in: int | None,
    never_expires: bool,
    enable: bool,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Change a key; running servers follow at once."""
    if (models and all_models) or (expires_in is not None and never_expires):
        raise click.UsageError("these options contradict each other")
    changes: dict[str, Any] = {}
    if scopes:
        changes["scopes"] = scopes
    if models or all_models:
        changes["models"] = models
    if expires_in is not None or never_expires:
        changes["expires"] = _end(expires_in)
    if enable:
        changes["disabled"] = False
    if not changes:
        raise click.UsageError("nothing to change: give at least one option, such as --enable")
    settings = load_config(config_file).settings
    changed = with_store(
        settings.store, lambda store: store.update_key(_public_id(public_id), **changes)
    )
    _report(changed, as_json)


@keys.command()
@click.argument("public_id", metavar="KEY")
@config_option
@json_option
def disable(public_id: str, config_file: Path | None, as_json: bool) -> None:
    """Refuse a key for now; `keys update KEY --enable` takes it back."""
    settings = load_config(config_file).settings
    changed = with_store(
        settings.store, lambda store: store.update_key(_public_id(public_id), disabled=True)
    )
    _report(changed, as_json)


@keys.command()
@click.argument("public_id", metavar="KEY")
@config_option
@json_option
def revoke(public_id: str, config_file: Path | None, as_json: bool) -> None:
    """End a key for good, everywhere within a second."""
    settings = load_config(config_file).settings
    key = with_store(settings.store, lambda store: store.revoke_key(_public_id(public_id)))
    if as_json:
        print_json(key.describe())
    else:
        click.echo(f"revoked {key.public_id} of {key.tenant}")


@keys.command()
@click.argument("public_id", metavar="KEY")
@click.option(
    "--overlap",
    type=_duration,
    metavar="TIME",
    default="1h",
    show_default=True,
    help="How long the old key goes on working; 0s ends it at once.",
)
@config_option
@json_option
def rotate(public_id: str, overlap: int, config_file: Path | None, as_json: bool) -> None:
    """Issue a key with the same rights; the old one works a while longer."""
    settings = load_config(config_file).settings
    issued = with_store(
        settings.store, lambda store: store.rotate_key(_public_id(public_id), overlap)
    )
    _report_issued(issued, as_json)


def _end(seconds: int | None) -> int | None:
    """The whole Unix second that is `seconds` from now, or just after."""
    return None if seconds is None else ceil(datetime.now(UTC).timestamp()) + seconds


def _public_id(text: str) -> str:
    """Whole keys are pasted by mistake; only their public part is used, and ever shown."""
    form = re.fullmatch(r"wm-([0-9a-f]+)-\w+", text)
    return form[1] if form else text


def _report_issued(issued: "IssuedKey", as_json: bool) -> None:
    if as_json:
        print_json({"key": issued.raw, **issued.key.describe()})
        return
    click.echo(issued.raw)
    note(
        f"This is the only time the key is shown. Its public id is {issued.key.public_id},"
        f" its tenant {issued.key.tenant}."
    )


def _report(key: "ApiKey", as_json: bool) -> None:
    if as_json:
        print_json(key.describe())
    else:
        print_table(("FIELD", "VALUE"), zip(_HEADER, _row(key), strict=True))


def _row(key: "ApiKey") -> tuple[object, ...]:
    state = key.state(int(datetime.now(UTC).timestamp()))
    return (
        key.public_id,
        key.tenant,
        state,
        " ".join(sorted(key.scopes)),
        " ".join(sorted(key.models)) or "all",
        _date(key.created),
        _date(key.expires),
    )


def _date(seconds: int | None) -> str | None:
    if seconds is None:
        return None
    if seconds > _LAST_DATE:
        return "after 9999"
    return datetime.fromtimestamp(seconds, UTC).isoformat()
