"""`watermaster demo`: two tenants to try things with."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.common import CliError, config_option, json_option, load_config, note, print_json
from gateway.cli.store import with_store

if TYPE_CHECKING:
    from gateway.config import ServerSettings
    from tenants.store import Store

WEIGHTS = {"gold": 3.0, "bronze": 1.0}
_ASSIGNMENT = re.compile(r"export (\w+)=(\S+)")


@click.command()
@config_option
@json_option
def demo(config_file: Path | None, as_json: bool) -> None:
    """Create two tenants, gold and bronze, with keys.

    Gold has weight 3 and bronze weight 1. Their keys go to demo.env in the data folder, readable
    by you alone. Keys that still work are kept, so that running this again changes nothing.
    """
    settings = load_config(config_file).settings
    file = settings.store.data_dir / "demo.env"
    existing = _read(file)
    raw_keys = with_store(settings.store, lambda store: _ensure(store, existing))
    values = {_variable(tenant): raw for tenant, raw in raw_keys.items()}
    values["WM_URL"] = base_url(settings.server)
    if values != existing:
        _write(file, values)
    if as_json:
        print_json({"file": str(file), "url": values["WM_URL"], "tenants": WEIGHTS})
        return
    click.echo("tenants gold (weight 3) and bronze (weight 1) are ready; load their keys with:")
    click.echo(f"  . {file}")


def base_url(server: "ServerSettings") -> str:
    """Where a caller on this machine reaches the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)  # noqa: S104
    return f"http://{f'[{host}]' if ':' in host else host}:{server.port}"


async def _ensure(store: "Store", existing: dict[str, str]) -> dict[str, str]:
    """The raw key of each tenant: the one in the file if it still works, else a new one."""
    from tenants.model import Tenant

    raw_keys = {}
    for name, weight in WEIGHTS.items():
        tenant = await store.ensure_tenant(Tenant(name, weight=weight))
        if tenant.weight != weight or tenant.disabled:
            state = "disabled" if tenant.disabled else f"of weight {tenant.weight:g}"
            note(f"the tenant {name} exists already and is {state}; it stays so")
        raw = existing.get(_variable(name), "")
        works = await _works(store, raw, name)
        raw_keys[name] = raw if works else (await store.create_key(name)).raw
    return raw_keys


async def _works(store: "Store", raw: str, tenant: str) -> bool:
    from telemetry.units import SECOND
    from tenants.keys import matches, parse

    presented = parse(raw)
    found = await store.lookup(presented.public_id) if presented else None
    return (
        presented is not None
        and found is not None
        and matches(presented, found.key.digest)
        and found.tenant.id == tenant
        and not found.key.revoked
        and not found.key.expired(found.read_at // SECOND)
    )


def _variable(tenant: str) -> str:
    return f"WM_{tenant.upper()}_KEY"


def _read(file: Path) -> dict[str, str]:
    try:
        return dict(_ASSIGNMENT.findall(file.read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read {file}: {error}") from None


def _write(file: Path, values: dict[str, str]) -> None:
    """Replace the file in one step; nobody else may read it at any moment."""
    draft = file.with_suffix(".new")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as stream:
            stream.writelines(f"export {name}={value}\n" for name, value in values.items())
        draft.replace(file)
    except OSError as error:
        raise CliError(f"cannot write {file}: {error.strerror}") from None
