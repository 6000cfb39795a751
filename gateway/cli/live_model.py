"""The served model for commands that measure the real engine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.cli.common import CliError, Exit, config_option, load_config, note

if TYPE_CHECKING:
    from loadgen.live import LiveModel

F = TypeVar("F", bound=Callable[..., Any])


def live_options(command: F) -> F:
    """--config, --model and --threads."""
    model = click.option(
        "--model", "source", metavar="NAME", help="Model, by name or path.  [default: as served]"
    )
    threads = click.option(
        "--threads", type=click.IntRange(min=0), help="CPU threads.  [default: as served]"
    )
    return config_option(model(threads(command)))


def load_live(config_file: Path | None, source: str | None, threads: int | None) -> "LiveModel":
    """Load the model that the configuration serves, or another one. Raises CliError."""
    from engine.runtime.loader import load_quickest
    from engine.runtime.model_config import UnsupportedModelError
    from engine.runtime.store import ModelStoreError
    from engine.runtime.weights import WeightsError
    from gateway.model_source import ModelSourceError, find_model, kernel_config
    from loadgen.live import LiveModel, on_passing_thread

    settings = load_config(config_file, {"model.source": source, "model.threads": threads}).settings
    try:
        found = find_model(settings.model)
        kernel = kernel_config(found, settings.kernel)
        note(f"loading {settings.model.source}")
        model = on_passing_thread(lambda: load_quickest(found.path, found.dtype, found.device))
    except (ModelStoreError, ModelSourceError, UnsupportedModelError, WeightsError) as error:
        raise CliError(str(error), Exit.MODEL) from None
    return LiveModel(
        settings.model.source, model, kernel, settings.model.threads, kv_dtype=found.kv_dtype
    )


@contextmanager
def progress(title: str) -> Iterator[Callable[[float], None]]:
    """A bar on standard error, to be told the share that is done."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda share: bar.update(task, completed=share)


@contextmanager
def live_errors() -> Iterator[None]:
    """Say in one sentence what the engine did not do."""
    from loadgen.live import LiveError

    try:
        yield
    except LiveError as error:
        raise CliError(str(error)) from None
