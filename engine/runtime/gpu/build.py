"""Which executor runs a model where it lies, with what attends and draws there."""

import gc
from dataclasses import replace

import torch

from engine.core.config import KernelConfig
from engine.runtime.executor import TorchExecutor
from engine.runtime.gpu.attention import HostAttention
from engine.runtime.gpu.device import Device
from engine.runtime.gpu.executor import GpuExecutor
from engine.runtime.gpu.fake import FakeDevice
from engine.runtime.gpu.graphs import most_rows
from engine.runtime.model import LlamaModel, Model


class NoKernelsError(ValueError):
    """The kernels cannot run here; the message says what is missing."""


def make_executor(
    model: Model, config: KernelConfig, kv_dtype: torch.dtype | None = None
) -> GpuExecutor | TorchExecutor:
    """What serves `model`, not warmed up; `kv_dtype` as in `GpuExecutor`.

    ValueError for another format than the model's on a CPU, or a kernel beyond the model.
    """
    if isinstance(model, LlamaModel) and model.device.type == "cuda":
        return cuda_executor(model, config, kv_dtype=kv_dtype)
    if kv_dtype not in (None, model.dtype):
        raise ValueError(f"on a CPU the KV cache is in the model's {model.dtype}, not {kv_dtype}")
    return TorchExecutor(model, config)


def cuda_executor(
    model: LlamaModel,
    config: KernelConfig,
    *,
    graphs: bool = True,
    kv_dtype: torch.dtype | None = None,
) -> GpuExecutor:
    """On the card that holds the model's weights. NoKernelsError without Triton."""
    from engine.runtime.gpu.cuda import CudaDevice

    give_back()  # what loading left over, so that the KV pool finds one piece
    return _over_kernels(model, config, CudaDevice(model.device), graphs, kv_dtype)


def give_back() -> None:
    """Give memory that nothing holds any more back to the card.

    That waits for what still uses it. Call it before loading where an executor was lost: weights
    that torch's allocator put into its KV pool would keep that pool from being one piece again, and
    what it had launched could still write to them.
    """
    gc.collect()
    torch.cuda.empty_cache()


def interpreted_executor(
    model: LlamaModel,
    config: KernelConfig,
    seed: int | None = None,
    *,
    graphs: bool = True,
    kv_dtype: torch.dtype | None = None,
) -> GpuExecutor:
    """The card's kernels on the CPU, where TRITON_INTERPRET is set; see `fake_executor`."""
    return _over_kernels(model, config, FakeDevice(seed), graphs, kv_dtype)


def _over_kernels(
    model: LlamaModel,
    config: KernelConfig,
    device: Device,
    graphs: bool,
    kv_dtype: torch.dtype | None,
) -> GpuExecutor:
    try:
        from engine.runtime.kernels.backend import TritonAttention, TritonChoice, TritonOperators
    except ModuleNotFoundError as error:
        raise NoKernelsError(f"the GPU's kernels need the package '{error.name}'") from error
    shape, rows = model.config, most_rows(config.max_running)
    return GpuExecutor(
        replace(model, operators=TritonOperators(shape, model.dtype)),
        config,
        device,
        lambda cache: TritonAttention(shape, cache, model.rope, rows),
        TritonChoice(rows, shape.vocab_size, device.place),
        graphs=graphs,
        kv_dtype=kv_dtype,
    )


def fake_executor(
    model: LlamaModel,
    config: KernelConfig,
    seed: int | None = None,
    *,
    graphs: bool = True,
    kv_dtype: torch.dtype | None = None,
) -> GpuExecutor:
    """On the CPU, behind the asynchronous fake device (see `FakeDevice` for `seed`)."""
    if model.device != torch.device("cpu"):
        raise ValueError(f"the fake device computes on the CPU; the model is on {model.device}")
    return GpuExecutor(
        model,
        config,
        FakeDevice(seed),
        lambda cache: HostAttention(model.config, cache),
        graphs=graphs,
        kv_dtype=kv_dtype,
    )
