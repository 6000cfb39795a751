"""`watermaster tenants`: who shares the engine."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.common import (
    CliError,
    F,
    config_option,
    json_option,
    load_config,
    print_json,
    print_table,
    tell_damaged,
)
from gateway.cli.store import with_store
from tenants.settings import SETTINGS, Kind, Setting

if TYPE_CHECKING:
    from tenants.model import Tenant

_OPTIONAL = [setting for setting in SETTINGS.values() if not setting.required]
_ALWAYS = ("id", "weight", "disabled")  # columns of a list; others where somebody has a value
_COLUMNS = (*_ALWAYS, *(setting.name for setting in _OPTIONAL))
_SERVER = "server"  # the word for the server's own choice


def _options(*, clearable: bool) -> Callable[[F], F]:
    """One option for each setting; `clearable` adds 0 or `server` as ways back to none of its own.

    The range of numbers is the record's affair, so that all who write one say the same of it.
    """

    def add(command: F) -> F:
        for setting in reversed(_OPTIONAL):
            command = _option(setting, clearable=clearable)(command)
        return command

    return add


def _option(setting: Setting, *, clearable: bool) -> Callable[[F], F]:
    flag = "--" + setting.name.replace("_", "-")
    if setting.kind is Kind.CHOICE:
        back = (_SERVER,) if clearable else ()
        hint = f"  {_SERVER}: as the server is configured." if clearable else ""
        kind = click.Choice([*setting.values, *back])
        return click.option(flag, setting.name, type=kind, help=setting.about + hint)
    hint = "  0 removes it." if clearable else ""
    number, metavar = (float, "AMOUNT") if setting.kind is Kind.MONEY else (int, "N")
    return click.option(flag, setting.name, type=number, metavar=metavar, help=setting.about + hint)


@click.group()
def tenants() -> None:
    """Create, list and change tenants."""


@tenants.command()
@click.argument("tenant_id", metavar="TENANT")
@click.option("--weight", type=float, default=1.0, show_default=True, help="Share of the engine.")
@_options(clearable=False)
@config_option
@json_option
def create(
    tenant_id: str, weight: float, config_file: Path | None, as_json: bool, **settings: Any
) -> None:
    """Add a tenant. It needs a key before it can call: `watermaster keys create TENANT`."""
    from tenants.model import InvalidRecord, Tenant

    server = load_config(config_file).settings
    try:
        tenant = Tenant(tenant_id, weight=weight, **settings)
    except InvalidRecord as error:
        raise CliError(str(error)) from None
    _report(with_store(server.store, lambda store: store.create_tenant(tenant)), as_json)


@tenants.command("list")
@config_option
@json_option
def list_tenants(config_file: Path | None, as_json: bool) -> None:
    """List all tenants; records that are damaged are told apart, with exit code 4."""
    settings = load_config(config_file).settings
    listing = with_store(settings.store, lambda store: store.list_tenants())
    found = listing.found.values()
    if as_json:
        print_json([_describe(tenant) for tenant in found])
    else:
        used = [c for c in _COLUMNS if c in _ALWAYS or any(getattr(t, c) for t in found)]
        rows = [[getattr(tenant, column) for column in used] for tenant in found]
        print_table(["TENANT", *(column.upper() for column in used[1:])], rows)
    tell_damaged(listing.damaged)


@tenants.command()
@click.argument("tenant_id", metavar="TENANT")
@config_option
@json_option
def show(tenant_id: str, config_file: Path | None, as_json: bool) -> None:
    """Show one tenant."""
    settings = load_config(config_file).settings
    _report(with_store(settings.store, lambda store: store.get_tenant(tenant_id)), as_json)


@tenants.command()
@click.argument("tenant_id", metavar="TENANT")
@click.option("--weight", type=float, help="Share of the engine.")
@click.option("--enable", is_flag=True, help="Accept the keys of a disabled tenant again.")
@_options(clearable=True)
@config_option
@json_option
def update(
    tenant_id: str,
    weight: float | None,
    enable: bool,
    config_file: Path | None,
    as_json: bool,
    **given: float | str | None,
) -> None:
    """Change a tenant; a running server follows within a second."""
    changes: dict[str, Any] = {
        name: None if value in (0, _SERVER) else value
        for name, value in given.items()
        if value is not None
    }
    if weight is not None:
        changes["weight"] = weight
    if enable:
        changes["disabled"] = False
    if not changes:
        raise click.UsageError("nothing to change: give at least one option, such as --weight 2")
    settings = load_config(config_file).settings
    changed = with_store(settings.store, lambda store: store.update_tenant(tenant_id, **changes))
    _report(changed, as_json)


@tenants.command()
@click.argument("tenant_id", metavar="TENANT")
@config_option
@json_option
def disable(tenant_id: str, config_file: Path | None, as_json: bool) -> None:
    """Refuse all keys of a tenant; `tenants update TENANT --enable` takes it back."""
    settings = load_config(config_file).settings
    _report(with_store(settings.store, lambda store: store.disable_tenant(tenant_id)), as_json)


def _describe(tenant: "Tenant") -> dict[str, object]:
    from dataclasses import asdict

    return asdict(tenant)


def _report(tenant: "Tenant", as_json: bool) -> None:
    if as_json:
        print_json(_describe(tenant))
    else:
        print_table(("FIELD", "VALUE"), _describe(tenant).items())
