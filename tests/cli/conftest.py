"""The command line, run in this process against a real embedded store in a folder of its own."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from tenants.embedded import EmbeddedValkey

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """`run("tenants", "list", code=0)`: run a command and check its exit code."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WATERMASTER_")]:
        monkeypatch.delenv(name)  # the developer's own settings

    def call(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == code, result.output
        return result

    store = EmbeddedValkey(tmp_path / ".watermaster")
    store.start()  # the commands find it running instead of starting one each
    try:
        yield call
    finally:
        store.stop()


def parsed(result: Result) -> Any:
    return json.loads(result.stdout)
