"""Compiles a launch for a card that is not there, and reads what the binary takes of it."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.runtime.kernels.launch import Launch

TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
    torch.int32: "i32",
    torch.int64: "i64",
}
# of one multiprocessor: registers, and bytes of shared memory that one program may have
REGISTERS = 65_536
SHARED = {80: 163 << 10, 90: 227 << 10}
MATRIX = {"wgmma": r"wgmma\.mma_async", "mma": r"\bmma\.sync"}


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a kernel takes: registers and spilled bytes by thread, shared memory by program.

    `matrix` names the matrix instructions; `copies` how many bytes its asynchronous copies into
    shared memory bring at once, "" without any.
    """

    registers: int
    spilled: int
    shared: int
    threads: int
    matrix: str
    copies: str

    def breaches(self, card: int, spill_bound: int) -> list[str]:
        """Which limits it breaks, in words."""
        found = []
        if self.spilled > spill_bound:
            found.append(f"{self.spilled} bytes spilled, at most {spill_bound}")
        if self.registers * self.threads > REGISTERS:
            found.append(f"{self.registers} registers x {self.threads} threads exceed {REGISTERS}")
        if self.shared > SHARED[card]:
            found.append(f"{self.shared} bytes of shared memory exceed {SHARED[card]}")
        return found


def compile_ahead(launch: Launch, card: int) -> Footprint:
    """Compile for compute capability `card` (80 or 90) with the compiler that a card would use.

    Tensors may be on the meta device. Raises what Triton raises where it cannot compile. A process
    may compile for one card only: Triton 3.6 takes the conversions of 8-bit floats for all cards
    from the first.
    """
    source, options = _source(launch)
    compiled = triton.compile(source, target=GPUTarget("cuda", card, 32), options=options)
    registers, spilled = _resources(compiled.asm["cubin"])
    ptx = compiled.asm["ptx"]
    widths = {int(width, 0) for width in re.findall(r"cp\.async\.c\S+ .*?, (0x\w+|\d+)", ptx)}
    return Footprint(
        registers,
        spilled,
        compiled.metadata.shared,
        32 * compiled.metadata.num_warps,
        "+".join(name for name, pattern in MATRIX.items() if re.search(pattern, ptx)),
        "+".join(map(str, sorted(widths, reverse=True))),
    )


def identity(launch: Launch) -> str:
    """What tells its binary from others: types, constants, alignments and options."""
    source, options = _source(launch)
    parts = (source.signature, source.constants, source.attrs, options)
    return f"{launch.kernel.__name__} {' '.join(str(sorted(part.items())) for part in parts)}"


def _source(launch: Launch) -> tuple[ASTSource, dict[str, Any]]:
    """What `kernel[grid](...)` would compile for these arguments, and the options."""
    names = launch.kernel.arg_names
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, (parameter, value) in enumerate(
        zip(launch.kernel.params, launch.args, strict=False)
    ):
        signature[parameter.name] = _type(value)
        if isinstance(value, float) or parameter.do_not_specialize:
            continue
        if not isinstance(value, Tensor) and value == 1:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = 1
        elif _aligned(value):
            attributes[place,] = [["tt.divisibility", 16]]
    for name, value in launch.meta.items():
        if name in names:
            signature[name] = "constexpr"
            constants[name] = value
    options = {name: value for name, value in launch.options.items() if name not in names}
    return ASTSource(launch.kernel, signature, constants, attributes), options


def _aligned(value: Tensor | int) -> bool:
    if isinstance(value, Tensor):  # torch aligns what it allocates to more than 16 bytes
        return value.storage_offset() * value.itemsize % 16 == 0
    return value % 16 == 0


def _type(value: Tensor | float) -> str:
    if isinstance(value, Tensor):
        return "*" + TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of local memory, which is where spilled ones go, by thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    usage = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", done.stdout)
    if usage is None:
        raise RuntimeError(f"cuobjdump tells no resource usage: {done.stdout}")
    registers, stack, local = map(int, usage.groups())
    return registers, stack + local
