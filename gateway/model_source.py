"""From the model's settings to what serves it: its files, number format, device and KV cache."""

import hashlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.runtime.store import ORIGIN, ModelStore
from gateway.config import KernelSettings
from gateway.config_model import ModelSettings

if TYPE_CHECKING:
    import torch

    from engine.core.config import KernelConfig
    from engine.host.worker import AnyExecutor
    from engine.runtime.model_config import ModelConfig
    from policies.config import PolicyConfig

GIB = 1 << 30
CPU_SHARE = 0.25
CPU_CEILING = GIB
E4M3 = (8, 9)  # the first compute capability that converts float8_e4m3fn
CARD_BLOCK = 16  # tokens
CPU_BLOCK = 64  # in smaller ones attention waits for where they lie
MOVED_BLOCKS = 64  # to measure how long a move takes


class ModelSourceError(Exception):
    """The model cannot be run as configured; the message says why."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model's files and how to compute with them. `revision` changes when the files do.

    On torch's `meta` device, which holds no data, the model is simulated.
    """

    path: Path
    config: "ModelConfig"
    dtype: "torch.dtype"
    kv_dtype: "torch.dtype"
    device: "torch.device"
    revision: str

    @property
    def weight_bytes(self) -> int:
        """Size of the weight files, which is about that of the weights in memory."""
        return sum(file.stat().st_size for file in _weight_files(self.path))


def open_model_store(settings: ModelSettings) -> ModelStore:
    return ModelStore(settings.cache)


def find_model(settings: ModelSettings) -> ModelSource:
    """Look the model up and decide how to run it, without reading its weights.

    Raises ModelStoreError, UnsupportedModelError, WeightsError, or ModelSourceError for a number
    format that the device does not compute with.
    """
    path = open_model_store(settings).path(settings.source)
    device = _device(settings.device)
    config = _read_config(path)
    dtype = model_dtype(settings.dtype, device, config)
    kv_dtype = cache_dtype(settings.kv_dtype, dtype, device)
    revision = _revision(path, f"{dtype} {kv_dtype}")
    return ModelSource(path, config, dtype, kv_dtype, device, revision)


def kernel_config(
    source: ModelSource,
    settings: KernelSettings,
    policy: "PolicyConfig | None" = None,
    engines: int = 1,
) -> "KernelConfig":
    """Sizes and limits of the engine, with as many KV blocks as memory and use allow.

    `engines` of them share the memory.
    """
    from engine.runtime.gpu.memory import block_bytes

    on_card, model = source.device.type == "cuda", source.config
    sized = settings.to_config(
        policy,
        block_size=CARD_BLOCK if on_card else CPU_BLOCK,
        vocab_size=model.vocab_size,
        model_context=model.context_length,
    )
    size = block_bytes(model, source.kv_dtype, sized.block_size)
    useful = settings.max_running * -(-sized.max_context // sized.block_size)
    if on_card:
        num_blocks = _blocks_on_card(source, settings, sized, useful, engines)
    elif settings.kv_memory is not None:
        num_blocks = settings.kv_memory // size
    else:
        num_blocks = min(_memory_for_kv(source) // engines // size, useful)
    host_blocks = settings.host_memory // size
    return replace(
        sized,
        host_blocks=host_blocks,
        num_blocks=max(1, num_blocks),
        max_in_flight=2 if on_card else 1,
        host_overlap=on_card,
        host_block_ns=_move_time(source, sized.block_size) if on_card and host_blocks else 0.0,
    )


def _blocks_on_card(
    source: ModelSource,
    settings: KernelSettings,
    sized: "KernelConfig",
    useful: int,
    engines: int,
) -> int:
    import torch

    from engine.runtime.gpu.memory import NotEnoughMemoryError, block_bytes, plan_memory

    free, total = torch.cuda.mem_get_info(source.device)
    plan = plan_memory(
        source.config, source.dtype, sized, total=total // engines, free=free // engines
    )
    size = block_bytes(source.config, source.kv_dtype, sized.block_size)
    try:
        return plan.blocks(size, settings.kv_memory, useful)
    except NotEnoughMemoryError as error:
        raise ModelSourceError(str(error)) from error


def _move_time(source: ModelSource, block_size: int) -> float:
    """Nanoseconds that a KV block takes between card and host."""
    import torch

    from engine.runtime.host_link import seconds_a_block
    from engine.runtime.kv_cache import KVCache

    sizes = (MOVED_BLOCKS, block_size, source.dtype, source.device, MOVED_BLOCKS, source.kv_dtype)
    seconds = seconds_a_block(KVCache(source.config, *sizes))
    torch.cuda.empty_cache()  # the KV pool takes all that is left
    return seconds * 1e9


def executor_factory(
    source: ModelSource, kernel: "KernelConfig", threads: int
) -> "Callable[[], AnyExecutor]":
    """What the engine thread calls, at start and after a failure: load the model and warm up."""
    if source.device.type == "meta":
        from engine.sim.instant import instant_executor

        return lambda: instant_executor(kernel)

    def build() -> "AnyExecutor":
        import torch

        from engine.runtime.gpu.build import give_back, make_executor
        from engine.runtime.loader import load_quickest

        if threads:
            torch.set_num_threads(threads)
        if source.device.type == "cuda":
            give_back()
        try:
            model = load_quickest(source.path, source.dtype, source.device)
            executor = make_executor(model, kernel, source.kv_dtype)
            executor.warm_up()
        except torch.OutOfMemoryError as error:
            raise ModelSourceError(
                f"{source.device} has no room for the model and {kernel.num_blocks} KV blocks; "
                f"set kernel.kv_memory lower. Torch says: {error}"
            ) from error
        return executor

    return build


def available_memory() -> int:
    """Bytes that this process may still take: of the machine, and of its control group."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except FileNotFoundError:  # not Linux; half of the memory is a safe guess there
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    fields = dict(line.split(":", 1) for line in lines)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except FileNotFoundError:  # no limit of version 2 applies to us
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - used))


def _memory_for_kv(source: ModelSource) -> int:
    return min(CPU_CEILING, round(CPU_SHARE * max(0, available_memory() - source.weight_bytes)))


def _read_config(path: Path) -> "ModelConfig":
    from engine.runtime.loader import open_weights

    config, _ = open_weights(path)  # what is wrong is better told now than by the engine thread
    return config


def _device(name: str) -> "torch.device":
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ModelSourceError("model.device is cuda, but torch finds no CUDA device here")
    if name == "simulated":
        name = "meta"
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and importlib.util.find_spec("triton") is None:
        raise ModelSourceError("model.device is cuda, which needs the Python package triton")
    return torch.device(name)


def model_dtype(name: str, device: "torch.device", config: "ModelConfig") -> "torch.dtype":
    """What `model.dtype` says for a model of this shape on `device`. Raises ModelSourceError."""
    import torch

    if name == "auto":
        name = "bf16" if device.type != "cpu" or _computes_bf16(config) else "fp32"
    if name == "fp16" and device.type == "cpu":
        raise ModelSourceError(
            "model.dtype is fp16, which this engine computes on a GPU only; take bf16 or fp32"
        )
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]


def cache_dtype(name: str, model: "torch.dtype", device: "torch.device") -> "torch.dtype":
    """What `model.kv_dtype` says for a model of format `model`. Raises ModelSourceError."""
    import torch

    if name == "auto":
        return model
    if device.type == "cpu":
        raise ModelSourceError(
            f"model.kv_dtype is {name}, which needs a GPU, and the model runs on the CPU; take auto"
        )
    if name == "fp8" and device.type == "cuda" and torch.cuda.get_device_capability(device) < E4M3:
        raise ModelSourceError(
            "model.kv_dtype is fp8, which needs compute capability 8.9, and "
            f"{torch.cuda.get_device_name(device)} has less; take fp8_e5m2"
        )
    return torch.float8_e4m3fn if name == "fp8" else torch.float8_e5m2


def _computes_bf16(config: "ModelConfig") -> bool:
    """Whether bf16, half the bytes of fp32, is also the quicker of both on this CPU."""
    import torch

    from engine.runtime.native.library import whole_step_for
    from engine.runtime.native.model import fits

    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"):
        return True
    return fits(config) and whole_step_for(torch.bfloat16) is not None


def _revision(path: Path, dtype: str) -> str:
    """Names the model's files by what is cheap to read: the configuration, names and sizes."""
    digest = hashlib.sha256(dtype.encode())
    if path.is_dir():
        digest.update((path / "config.json").read_bytes())
    for file in (*_weight_files(path), *path.glob(ORIGIN)):
        digest.update(f"\n{file.name} {file.stat().st_size}".encode())
    return digest.hexdigest()[:16]


def _weight_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
