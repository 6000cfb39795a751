"""The command as a whole: fast, helpful, and quiet about its insides."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.config_docs import example, markdown
from tests.cli.conftest import Run, parsed


def test_help_answers_at_once_and_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom gateway.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'torch', 'redis', 'starlette', 'pydantic', 'opentelemetry', 'rich', 'numpy'}\n"
        "sys.exit(str(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else 0)\n"
    )
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "watermaster serve" in done.stdout
    assert time.monotonic() - start < 2  # 0.1 s on an idle machine


def commands() -> list[list[str]]:
    found: list[list[str]] = [[]]
    for name, command in main.commands.items():
        found.append([name])
        found += [[name, inner] for inner in getattr(command, "commands", {})]
    return found


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_every_command_has_help(path: list[str]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) > 4


def test_config_commands(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATERMASTER_SERVER_PORT", "9000")
    rows = parsed(run("config", "show", "--json"))
    assert rows["server.port"] == {"value": 9000, "source": "WATERMASTER_SERVER_PORT"}
    assert rows["server.host"] == {"value": "127.0.0.1", "source": "default"}
    assert "server.port" in run("config", "show").stdout
    assert parsed(run("config", "check", "--json")) == {"valid": True, "keys_set": 1}
    assert run("config", "example").stdout == example()
    assert run("config", "docs").stdout == markdown()
    monkeypatch.setenv("WATERMASTER_SERVER_PRT", "1")
    assert "WATERMASTER_SERVER_PORT" in run("config", "check", code=2).stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_under_the_output_is_told_in_one_sentence() -> None:
    command = [sys.executable, "-m", "gateway.cli", "config", "docs"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: what is written to: No space left on device\n"


def test_closed_standard_files_leave_their_numbers_to_nothing_else(tmp_path: Path) -> None:
    environment = {n: v for n, v in os.environ.items() if not n.startswith("WATERMASTER_")}
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "tenants"]
    closing = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]  # the store's locks would be 0 and 1

    def end(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(words, cwd=tmp_path, env=environment, check=True, capture_output=True)

    end(*closing, *command, "create", "acme")
    assert b"acme" in end(*command, "list").stdout
