"""Builds kernels.cpp and its headers with the machine's C++ compiler, once, and loads it.

The library is kept in the user's cache under a hash of its source, the command and the processor.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch

from engine.runtime.store import ModelStoreError, default_root

FLAGS = (
    *("-O3", "-march=native", "-std=c++17", "-fno-math-errno", "-fno-trapping-math"),
    *("-fopenmp", "-shared", "-fPIC"),
)
SOURCES = (".cpp", ".h")
COMPILERS = ("c++", "g++", "clang++")
BUILD_SECONDS = 120.0
SUFFIXES = {torch.bfloat16: "bf16", torch.float32: "f32"}

# What each function takes: p a pointer, n a number, x a float.
SIGNATURES = {
    "rms_norm": "pppnnx",
    "add": "ppn",
    "silu_mul": "ppnn",
    "rotate": "ppppnnnn",
    "store_kv": "pppnnnn",
    "largest": "pppnnn",
    "decode": "ppppppnnnnnnx",
}
TYPES = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "x": ctypes.c_float}

logger = logging.getLogger("watermaster.engine")


class BuildError(Exception):
    """The library cannot be built here; one sentence that says why."""


class Kernels:
    """The functions of kernels.cpp for one number format, under their names there.

    They take addresses and sizes and check nothing: callers own shapes and strides.
    """

    rms_norm: Callable[..., None]
    add: Callable[..., None]
    silu_mul: Callable[..., None]
    rotate: Callable[..., None]
    store_kv: Callable[..., None]
    largest: Callable[..., None]
    decode: Callable[..., None]

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        for name, takes in SIGNATURES.items():
            function = getattr(library, f"{name}_{SUFFIXES[dtype]}")
            function.argtypes = [TYPES[kind] for kind in takes]
            function.restype = None
            setattr(self, name, function)


@dataclass(frozen=True, slots=True)
class WholeStep:
    """A whole step in one call, as this processor computes it.

    `run` takes the addresses of a Model and a Step of forward.h; `lanes` are the outputs of one of
    their panels, and `activations` the format in which a step keeps what it multiplies.
    """

    run: Callable[[int, int], None]
    lanes: int
    activations: torch.dtype

    @property
    def inputs(self) -> int:
        """How many of an output lie side by side where weights are in blocks (`pack_blocks`)."""
        return 2 if self.activations == torch.bfloat16 else 1


def whole_step_for(dtype: torch.dtype) -> WholeStep | None:
    """A whole step in one call, or None where only single kernels were built, or none."""
    library = _library()
    if library is None or dtype != torch.bfloat16 or not hasattr(library, "forward_bf16"):
        return None
    library.forward_bf16.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.forward_bf16.restype = None
    small = library.activation_bytes() == torch.bfloat16.itemsize
    return WholeStep(
        run=library.forward_bf16,
        lanes=library.panel_outputs(),
        activations=torch.bfloat16 if small else torch.float32,
    )


def kernels_for(dtype: torch.dtype) -> Kernels | None:
    """Those for `dtype`, or None, with a warning the first time, where they cannot be built."""
    library = _library()
    return None if library is None or dtype not in SUFFIXES else Kernels(library, dtype)


@cache
def _library() -> ctypes.CDLL | None:
    try:
        return load(default_root() / "native")
    except (BuildError, ModelStoreError, OSError) as error:
        logger.warning("computing without native kernels, more slowly: %s", error)
        return None


def load(folder: Path) -> ctypes.CDLL:
    """The library, built unless it is in `folder`. Raises BuildError or OSError."""
    target = build(folder)
    try:
        return ctypes.CDLL(str(target))
    except OSError:  # it is damaged
        target.unlink(missing_ok=True)
        return ctypes.CDLL(str(build(folder)))


def build(folder: Path) -> Path:
    """The library's file in `folder`, built unless it is there. Raises BuildError or OSError."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    found = sorted(files(__package__).iterdir(), key=lambda file: file.name)
    sources = {file.name: file.read_bytes() for file in found if file.name.endswith(SOURCES)}
    digest = hashlib.sha256(repr((sources, FLAGS, _processor())).encode()).hexdigest()[:16]
    target = folder / f"kernels-{digest}.so"
    if target.exists():
        return target
    if compiler is None:
        raise BuildError(f"none of the compilers {', '.join(COMPILERS)} is installed")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for name, text in sources.items():
            Path(scratch, name).write_bytes(text)
        made = Path(scratch, "kernels.so")
        _compile((compiler, *FLAGS, str(Path(scratch, "kernels.cpp")), "-o", str(made)))
        with made.open("rb") as whole:
            os.fsync(whole.fileno())  # or a machine that goes down now may leave an empty one
        os.replace(made, target)  # at once, for another process may build it at the same time
    return target


def _compile(command: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=BUILD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} did not finish in {BUILD_SECONDS:g} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise BuildError(f"{command[0]} failed: {said[0] if said else done.returncode}")


def _processor() -> str:
    """Tells processors apart for which -march=native means something else."""
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return f"{platform.machine()} {platform.processor()}"
    lines = information.read_text().splitlines()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags"))}))
