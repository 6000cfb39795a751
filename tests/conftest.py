"""Fixtures that every part of the test suite may use."""

import gc
import re
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from engine.runtime.store import DEFAULT_MODEL, ModelStore

WITHOUT = re.compile(r"not \w+( and not \w+)*")
OF_A_FILE = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(\w+)", re.MULTILINE)

# How long an example takes, or its drawing, says how busy the machine is, and nothing of the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files all of whose tests `-m "not … and not …"` would deselect one by one.

    Before that they would be imported, with the stock clients, which take seconds.
    """
    if not WITHOUT.fullmatch(config.option.markexpr) or collection_path.suffix != ".py":
        return None
    left_out = set(config.option.markexpr.removeprefix("not ").split(" and not "))
    mark = OF_A_FILE.search(collection_path.read_text())
    return True if mark and mark[1] in left_out else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting makes a million objects that stay: looking for garbage among them is in vain."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def model_path() -> Path:
    """Folder of the default model, downloaded once into the ordinary cache.

    Tests that use it are marked `model`.
    """
    return ModelStore().pull(DEFAULT_MODEL, report=print)
