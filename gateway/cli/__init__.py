"""The `watermaster` command.

Every module here imports only click, the standard library and the table of tenants' settings at its
top, so that `--help` and completion answer at once; commands import what they need when they run.
"""

import errno
import os

import click

from gateway.cli.admin import admin
from gateway.cli.audit import audit
from gateway.cli.bench import bench
from gateway.cli.common import CliError
from gateway.cli.config import config
from gateway.cli.demo import demo
from gateway.cli.keys import keys
from gateway.cli.model import model
from gateway.cli.profile import profile
from gateway.cli.replay import replay
from gateway.cli.serve import serve
from gateway.cli.simulate import simulate
from gateway.cli.tenants import tenants
from gateway.cli.usage import usage


class Commands(click.Group):
    """Tells of a full disk, where output or a store goes, in one sentence as of other failures."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise CliError(f"{error.filename or 'what is written to'}: {error.strerror}") from None


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="watermaster")
def main() -> None:
    """Serve a language model to many tenants, each with its fair share.

    \b
    First steps:
      watermaster model pull       download the default model
      watermaster demo             create the tenants gold and bronze, with keys
      watermaster serve            answer on http://127.0.0.1:8000

    Settings come from watermaster.toml and WATERMASTER_* variables; see `watermaster config`.
    Exit codes: 0 done, 1 refused, 2 wrong usage or configuration, 3 model, 4 store, 5 port taken.
    """  # noqa: D301 - click reads the backspace
    _keep_standard_files()


def _keep_standard_files() -> None:
    """Where one was closed, what is opened next, a lock or a socket say, would take its place.

    What writes to standard error would write there, and programs that we start would close it.
    """
    number = os.open(os.devnull, os.O_RDWR)
    while number <= 2:
        os.set_inheritable(number, True)
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)


SERVING = (serve, model, tenants, keys, admin, audit, usage, demo, config)
MEASURING = (bench, profile, simulate, replay)

for command in (*SERVING, *MEASURING):
    main.add_command(command)
