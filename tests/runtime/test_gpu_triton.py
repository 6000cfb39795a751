"""The executor over the Triton kernels, interpreted: the serial executor's text, graphs and all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.model  # slow as those are

ROOT = Path(__file__).parents[2]


def test_text_over_the_kernels_is_serial_text():
    """In a process of its own: whether kernels are interpreted is decided when they are defined."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.interpreted"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "same text: 4\n"
