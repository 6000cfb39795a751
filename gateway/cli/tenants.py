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
)
from gateway.cli.store import with_store

if TYPE_CHECKING:
    from tenants.model import Tenant

_CAPS = {
    "queue_requests": "Requests it may have waiting.",
    "queue_tokens": "Prompt tokens it may have waiting.",
    "default_timeout_ms": "Deadline of a request that names none, in milliseconds.",
    "max_timeout_ms": "Latest deadline a request may name, in milliseconds.",
    "default_max_tokens": "Output tokens of a request that names none.",
    "max_max_tokens": "Most output tokens a request may ask for.",
}


def _cap_options(*, clearable: bool) -> Callable[[F], F]:
    """One option for each cap; `clearable` adds 0 as the way back to the server's own."""
    hint = "  0 removes it." if clearable else ""
    least = 0 if clearable else 1

    def add(command: F) -> F:
        for name, text in reversed(_CAPS.items()):
            option = "--" + name.replace("_", "-")
            kind = click.IntRange(min=least)
            command = click.option(option, name, type=kind, metavar="N", help=text + hint)(command)
        return command

    return add


@click.group()
def tenants() -> None:
    """Create, list and change tenants."""


@tenants.command()
@click.argument("tenant_id", metavar="TENANT")
@click.option("--weight", type=float, default=1.0, show_default=True, help="Share of the engine.")
@_cap_options(clearable=False)
@config_option
@json_option
def create(
    tenant_id: str, weight: float, config_file: Path | None, as_json: bool, **caps: Any
) -> None:
    """Add a tenant. It needs a key before it can call: `watermaster keys create TENANT`."""
    from tenants.model import InvalidRecord, Tenant

    settings = load_config(config_file).settings
    try:
        tenant = Tenant(tenant_id, weight=weight, **caps)
    except InvalidRecord as error:
        raise CliError(str(error)) from None
    _report(with_store(settings.store, lambda store: store.create_tenant(tenant)), as_json)


@tenants.command("list")
@config_option
@json_option
def list_tenants(config_file: Path | None, as_json: bool) -> None:
    """List all tenants."""
    settings = load_config(config_file).settings
    found = with_store(settings.store, lambda store: store.list_tenants())
    if as_json:
        print_json([_describe(tenant) for tenant in found])
    else:
        rows = [(t.id, t.weight, t.disabled, *(getattr(t, cap) for cap in _CAPS)) for t in found]
        print_table(("TENANT", "WEIGHT", "DISABLED", *(cap.upper() for cap in _CAPS)), rows)


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
@_cap_options(clearable=True)
@config_option
@json_option
def update(
    tenant_id: str,
    weight: float | None,
    enable: bool,
    config_file: Path | None,
    as_json: bool,
    **caps: int | None,
) -> None:
    """Change a tenant; a running server follows within a second."""
    changes: dict[str, Any] = {
        cap: value or None for cap, value in caps.items() if value is not None
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
