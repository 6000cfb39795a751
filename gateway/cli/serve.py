"""`watermaster serve`: the gateway and its engine, in this process."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.common import CliError, Exit, config_option, load_config

if TYPE_CHECKING:
    from socket import socket

    from gateway.config import Settings


@click.command()
@config_option
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, metavar="PORT", help="Port to listen on.  [default: 8000]")
def serve(config_file: Path | None, host: str | None, port: int | None) -> None:
    """Serve the model until SIGTERM, Ctrl-C, or its terminal is closed.

    /ready answers once the model is warmed up. The first signal lets running work finish within
    `server.drain_grace` seconds; a second one ends it at once.
    """
    from gateway.listener import ListenError, bind

    settings = load_config(config_file, {"server.host": host, "server.port": port}).settings
    try:
        # Before torch is imported: whoever chose a port that is taken should not wait for it.
        with bind(settings.server.host, settings.server.port) as listener:
            sys.exit(_run(settings, listener))
    except ListenError as error:
        raise CliError(str(error), Exit.PORT) from None


def _run(settings: "Settings", listener: "socket") -> int:
    from engine.runtime.model_config import UnsupportedModelError
    from engine.runtime.store import ModelStoreError
    from engine.runtime.text.errors import CodecError
    from engine.runtime.weights import WeightsError
    from gateway.model_source import ModelSourceError
    from gateway.server import run
    from tenants.embedded import EmbeddedStoreError
    from tenants.store import StoreError

    model_errors = (ModelStoreError, ModelSourceError, UnsupportedModelError)
    file_errors = (WeightsError, CodecError)
    try:
        return run(settings, listener)
    except (*model_errors, *file_errors) as error:
        raise CliError(str(error), Exit.MODEL) from None
    except (StoreError, EmbeddedStoreError) as error:
        raise CliError(str(error), Exit.STORE) from None
