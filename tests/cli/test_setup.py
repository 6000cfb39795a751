"""`scripts/setup.sh`: what is missing is told in one sentence, and nothing is left half done."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("sh", "dirname", "cat", "cksum", "awk", "df")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the script looks at, without an environment; `bin` holds the only programs it finds."""
    for name in ("pyproject.toml", "constraints.txt", "scripts/setup.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for program in NEEDED:
        found = shutil.which(program)
        assert found is not None
        (tmp_path / "bin" / program).symlink_to(found)
    return tmp_path


def set_up(checkout: Path, *arguments: str, **variables: str) -> str:
    """Run the script, which has to fail; returns what it says."""
    done = subprocess.run(
        ["sh", "scripts/setup.sh", *arguments],
        cwd=checkout,
        env={"PATH": str(checkout / "bin"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert not (checkout / ".venv").exists()
    return done.stderr


def program(checkout: Path, name: str, script: str) -> None:
    file = checkout / "bin" / name
    file.unlink(missing_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_no_python_at_all(checkout: Path) -> None:
    said = set_up(checkout, "run")
    assert said.startswith("error: no Python 3.11 or later with its venv module was found")
    assert said.count("\n") == 1


def test_a_python_that_is_too_old_is_passed_over(checkout: Path) -> None:
    program(checkout, "python3", "exit 1")  # what the version check would say
    assert set_up(checkout, "run").startswith("error: no Python 3.11 or later")


def test_a_python_named_by_the_user_is_the_only_candidate(checkout: Path) -> None:
    said = set_up(checkout, "test", PYTHON="/bin/false")
    assert said == "error: PYTHON=/bin/false is not a Python 3.11 or later with its venv module\n"


def test_no_disk(checkout: Path) -> None:
    program(checkout, "python3", "exit 0")
    program(checkout, "df", "echo head; echo '/dev/x 9 8 12345 99% /'")
    said = set_up(checkout, "run")
    assert said == (
        f"error: not enough disk here: 12 MB are free in {os.path.realpath(checkout)},"
        " and installing takes 3 GB\n"
    )


def test_an_unknown_purpose(checkout: Path) -> None:
    assert set_up(checkout, "everything") == "error: usage: scripts/setup.sh run|test\n"
