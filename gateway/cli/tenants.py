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
from tenants.choices import CHOICES, MODES

if TYPE_CHECKING:
    from tenants.model import Tenant

_NUMBERS = {
    "queue_requests": "Requests it may have waiting.",
    "queue_tokens": "Prompt tokens it may have waiting.",
    "default_timeout_ms": "Deadline of a request that names none, in milliseconds.",
    "max_timeout_ms": "Latest deadline a request may name, in milliseconds.",
    "default_max_tokens": "Output tokens of a request that names none.",
    "max_max_tokens": "Most output tokens a request may ask for.",
    "tpot_target_ms": "Milliseconds per output token that others' prompts leave it.",
}
_CHOICES = {
    "admission": (MODES, "Which of its requests with a deadline are taken in."),
    "on_infeasible": (CHOICES, "What becomes of a request that would end after its deadline."),
}
_SETTINGS = (*_NUMBERS, *_CHOICES)
_SERVER = "server"  # the word for the server's own choice


def _options(*, clearable: bool) -> Callable[[F], F]:
    """One option for each setting; `clearable` adds 0 or `server` as ways back to the server's."""
    hint = "  0 removes it." if clearable else ""
    least = 0 if clearable else 1
    back = (_SERVER,) if clearable else ()
    way_back = f"  {_SERVER}: as the server is configured." if clearable else ""

    def add(command: F) -> F:
        for name, (values, text) in reversed(_CHOICES.items()):
            kind = click.Choice([*values, *back])
            command = click.option(_flag(name), name, type=kind, help=text + way_back)(command)
        for name, text in reversed(_NUMBERS.items()):
            number = click.IntRange(min=least)
            option = click.option(_flag(name), name, type=number, metavar="N", help=text + hint)
            command = option(command)
        return command

    return add


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


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
    """List all tenants."""
    settings = load_config(config_file).settings
    found = with_store(settings.store, lambda store: store.list_tenants())
    if as_json:
        print_json([_describe(tenant) for tenant in found])
    else:
        rows = [(t.id, t.weight, t.disabled, *(getattr(t, s) for s in _SETTINGS)) for t in found]
        print_table(("TENANT", "WEIGHT", "DISABLED", *(s.upper() for s in _SETTINGS)), rows)


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
    **given: int | str | None,
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
