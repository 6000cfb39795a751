"""Fixtures that every part of the test suite may use."""

import re
from pathlib import Path

import pytest

from engine.runtime.store import DEFAULT_MODEL, ModelStore

WITHOUT = re.compile(r"not \w+( and not \w+)*")
OF_A_FILE = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(\w+)", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files all of whose tests `-m "not … and not …"` would deselect one by one.

    Before that they would be imported, with the stock clients, which take seconds.
    """
    if not WITHOUT.fullmatch(config.option.markexpr) or collection_path.suffix != ".py":
        return None
    left_out = set(config.option.markexpr.removeprefix("not ").split(" and not "))
    mark = OF_A_FILE.search(collection_path.read_text())
    return True if mark and mark[1] in left_out else None


@pytest.fixture(scope="session")
def model_path() -> Path:
    """Folder of the default model, downloaded once into the ordinary cache.

    Tests that use it are marked `model`.
    """
    return ModelStore().pull(DEFAULT_MODEL, report=print)
