"""The device under test, the model on it, and the sizes of the measurements."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from engine.core.config import KernelConfig
from engine.runtime.device_check.shapes import HEAD_DIMS
from engine.runtime.gpu.build import cuda_executor, fake_executor
from engine.runtime.gpu.cuda import CudaDevice
from engine.runtime.gpu.device import Device
from engine.runtime.gpu.executor import GpuExecutor
from engine.runtime.gpu.fake import FakeDevice
from engine.runtime.kv_cache import NARROW
from engine.runtime.model import LlamaModel


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured; a dry run takes small ones, to show that it runs."""

    batches: tuple[int, ...] = (1, 16, 64, 256)
    contexts: tuple[int, ...] = (1024, 8192)
    prefills: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    requests: int = 256
    lengths: tuple[int, int] = (100, 1024)  # of prompts and outputs of the mixed run
    running: int = 256
    step_tokens: int = 8192
    steps: int = 60  # decode steps of one measurement
    stream_bytes: int = 4 << 30  # of the bandwidth measurements
    matrix: int = 8192  # rows and columns of the matrix measurement
    clients: int = 64  # streaming clients whose Python load runs beside decode steps
    seconds: float = 0.3  # of one timing, at least
    rounds: int = 5  # of one timing, whose median is told
    kernel_batch: int = 64  # rows of a kernel that is timed alone
    layers: int = 8  # calls of attention that are timed together
    cuts: tuple[int, ...] = (3, 8, 16)  # items of decode attention for each multiprocessor
    head_dims: tuple[int, ...] = HEAD_DIMS
    patience: float = 90.0  # seconds that the mixed run may take another engine
    # (positions known, positions computed): one, at and across block borders, long, chunked
    rows: tuple[tuple[int, int], ...] = (
        *((0, 1), (15, 1), (16, 1), (700, 1), (0, 5), (0, 16), (31, 33), (300, 130), (2000, 1)),
    )


DRY = Sizes(
    batches=(1, 4),
    contexts=(32, 64),
    prefills=(16, 64),
    requests=6,
    lengths=(4, 12),
    running=4,
    step_tokens=64,
    steps=6,
    stream_bytes=1 << 20,
    matrix=64,
    clients=4,
    seconds=0.01,
    rounds=1,
    kernel_batch=2,
    layers=1,
    cuts=(2,),
    head_dims=(64,),
    rows=((0, 1), (16, 1), (31, 5)),
)


@dataclass(frozen=True, slots=True)
class Target:
    """`device` is a card, or the CPU in a dry run."""

    device: torch.device
    dtype: torch.dtype
    sizes: Sizes

    @property
    def dry(self) -> bool:
        return self.device.type != "cuda"

    @property
    def kernels(self) -> bool:
        """Whether the kernels run: on the card, or interpreted."""
        return not self.dry or os.environ.get("TRITON_INTERPRET") == "1"

    @property
    def narrow(self) -> tuple[torch.dtype, ...]:
        """8-bit formats of the cache that the device converts, the one of `fp8` first."""
        if self.dry:
            return tuple(NARROW)
        major, minor = torch.cuda.get_device_capability(self.device)
        return tuple(form for form, first in NARROW.items() if 10 * major + minor >= first)

    def seam(self) -> Device:
        return FakeDevice() if self.dry else CudaDevice(self.device)

    def cold(
        self,
        model: LlamaModel,
        config: KernelConfig,
        *,
        graphs: bool = True,
        kv_dtype: torch.dtype | None = None,
    ) -> GpuExecutor:
        """A fresh executor, not warmed up."""
        make = fake_executor if self.dry else cuda_executor
        return make(model, config, graphs=graphs, kv_dtype=kv_dtype)

    def executor(
        self, model: LlamaModel, config: KernelConfig, *, graphs: bool = True
    ) -> GpuExecutor:
        """A fresh executor, warmed up."""
        made = self.cold(model, config, graphs=graphs)
        made.warm_up()
        return made

    def synchronize(self) -> None:
        if not self.dry:
            torch.cuda.synchronize(self.device)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes; a dry run pretends to have 8 GiB."""
        if self.dry:
            return 8 << 30, 8 << 30
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        """Of one call of `work`, the median of several rounds; launches overlap with the device."""
        with torch.inference_mode():
            work()  # compiles, and loads libraries: counted, it would leave a single call a round
            once = self._round(work, 2)
            each = self.sizes.seconds / self.sizes.rounds
            calls = max(1, min(200, int(each / max(once, 1e-6))))
            return median(self._round(work, calls) for _ in range(self.sizes.rounds))

    def replayed(self, work: Callable[[], torch.Tensor], calls: int) -> float:
        """As `seconds`, with `calls` calls in a graph, so that the host's part is not in it."""

        def several() -> torch.Tensor:
            for _ in range(calls - 1):
                work()
            return work()

        self.synchronize()  # what `work` reads may still be under way
        return self.seconds(self.seam().capture(several)) / calls

    def _round(self, work: Callable[[], object], calls: int) -> float:
        self.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            work()
        self.synchronize()
        return (time.perf_counter() - began) / calls
