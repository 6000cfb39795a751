"""The real server as a process, with a second model beside the first."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_server import ServerProcess, folder, start

__all__ = ["folder", "start"]  # fixtures

pytestmark = [pytest.mark.server, pytest.mark.model]


def test_each_model_has_a_command_log_whatever_it_is_called(
    start: Callable[..., ServerProcess], folder: Path, model_path: Path
) -> None:
    server = start(
        WATERMASTER_MODEL_DEVICE="simulated",
        WATERMASTER_MODEL_FALLBACK=str(model_path),
        WATERMASTER_MODEL_FALLBACK_ID="maker/small",
        WATERMASTER_ENGINE_COMMAND_LOG="logs/commands.log",
    )
    server.url()
    written = sorted(path.name for path in (folder / "logs").iterdir())
    assert written == ["commands-fallback.log", "commands.log"]
