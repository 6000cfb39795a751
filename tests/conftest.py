"""Fixtures that every part of the test suite may use."""

import re
from pathlib import Path

import pytest

from engine.runtime.store import DEFAULT_MODEL, ModelStore

FAST = "not model and not server"  # the expression that `make test` begins with
SLOW_FILE = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(model|server)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Among the fast tests, leave out files all of whose tests need a model or a server.

    They would be deselected one by one, after the stock clients, which take seconds, were imported.
    """
    if config.option.markexpr != FAST or collection_path.suffix != ".py":
        return None
    return True if SLOW_FILE.search(collection_path.read_text()) else None


@pytest.fixture(scope="session")
def model_path() -> Path:
    """Folder of the default model, downloaded once into the ordinary cache.

    Tests that use it are marked `model`.
    """
    return ModelStore().pull(DEFAULT_MODEL, report=print)
