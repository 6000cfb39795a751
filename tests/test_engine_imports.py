"""The engine and the policies import on a machine that has no web stack (GPU hosts)."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

# gguf and jinja2 are loaded inside functions
ABSENT = (
    "redis",
    "starlette",
    "uvicorn",
    "opentelemetry",
    "pydantic",
    "tenacity",
    "httpx",
    "orjson",
    "click",
    "prometheus_client",
    "jinja2",
    "gguf",
    "numba",
    "transformers",
)

SCRIPT = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def load():
    for name in list(sys.modules):
        if name.partition(".")[0] in OURS:
            del sys.modules[name]
    names = []
    for top in OURS:
        package = importlib.import_module(top)
        names += [top, *(m.name for m in pkgutil.walk_packages(package.__path__, top + "."))]
    # the kernels themselves are for hosts that have triton
    names = [name for name in names if "triton" not in ABSENT or KERNELS not in name]
    for name in names:
        importlib.import_module(name)
    return len(names)

sys.meta_path.insert(0, Absent())
on_a_cpu_host = load()
ABSENT.remove("triton")
print(on_a_cpu_host, load())
"""


def test_engine_and_policies_import_without_the_web_stack():
    """In one process, since torch alone takes seconds; all of ours is imported twice."""
    values = f"ABSENT = {[*ABSENT, 'triton']!r}\nOURS = ('engine', 'policies')\n"
    script = f"{values}KERNELS = 'engine.runtime.kernels'\n{SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    on_a_cpu_host, on_a_gpu_host = map(int, done.stdout.split())
    assert 20 < on_a_cpu_host < on_a_gpu_host
