"""Fixtures that every part of the test suite may use."""

from pathlib import Path

import pytest

from engine.runtime.store import DEFAULT_MODEL, ModelStore


@pytest.fixture(scope="session")
def model_path() -> Path:
    """Folder of the default model, downloaded once into the ordinary cache.

    Tests that use it are marked `model`.
    """
    return ModelStore().pull(DEFAULT_MODEL, report=print)
