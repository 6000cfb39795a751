"""Run by `test_ahead`, without the interpreter: prints each launch that nobody compiled ahead.

Launches are noted and not run. Where no results are needed, tensors are on torch's meta device.
"""

import os
from collections.abc import Iterator
from dataclasses import replace

import torch

from engine.core.config import KernelConfig
from engine.runtime.device_check.correctness import kernel_checks
from engine.runtime.device_check.kernels import kernel_rows
from engine.runtime.device_check.limits import Limits
from engine.runtime.device_check.shapes import TEXT, one_layer
from engine.runtime.device_check.target import Sizes, Target
from engine.runtime.gpu import build, results
from engine.runtime.gpu.fake import FakeDevice
from engine.runtime.kernels.ahead import identity
from engine.runtime.kernels.launch import Launch
from engine.runtime.kernels.variants import GEOMETRIES, MODELS, Geometry, parts, variants
from engine.runtime.kv_cache import NARROW
from engine.runtime.loader import build_model
from engine.runtime.model_config import ModelConfig
from engine.runtime.random_weights import geometry
from engine.runtime.weights import tensor_shape

CARD = 90  # what kernels take a device without a compute capability for
CPU, META = torch.device("cpu"), torch.device("meta")
LARGE = geometry("llama-3-8b")


class MetaDevice(FakeDevice):
    place = META


class Empty:
    """A source of weights without numbers."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self._config, self._dtype = config, dtype

    def get(self, name: str) -> torch.Tensor:
        return torch.empty(tensor_shape(name, self._config), dtype=self._dtype, device=META)


def config_of(shape: Geometry) -> ModelConfig:
    return replace(
        LARGE,
        num_layers=1,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocab,
        context_length=512,
    )


def serve(
    shape: ModelConfig, dtype: torch.dtype, max_running: int, kv_dtype: torch.dtype | None = None
) -> None:
    """All steps that an executor of it takes are like those of its start."""
    model = build_model(shape, Empty(shape, dtype), dtype, META)
    config = KernelConfig(
        num_blocks=64,
        max_running=max_running,
        max_step_tokens=max_running + 64,
        max_context=512,
        vocab_size=shape.vocab_size,
        max_in_flight=2,
    )
    build._over_kernels(model, config, MetaDevice(), True, kv_dtype).warm_up()


def check_a_card() -> None:
    """What `device_check` launches: at its full sizes, but for those that cost time here alone."""
    sizes = replace(Sizes(), seconds=0.0, rounds=1, stream_bytes=1 << 20, kernel_batch=2)
    list(kernel_checks(Target(CPU, torch.bfloat16, sizes), LARGE))
    target = Target(META, torch.bfloat16, sizes)
    list(kernel_rows(target, LARGE, Limits(1.0, 1.0, 1.0)))
    for form in (None, target.narrow[0]):
        serve(one_layer(LARGE), torch.bfloat16, sizes.running, form)
    serve(geometry(TEXT), torch.float32, 16)


def not_compiled(noted: dict[str, str]) -> Iterator[str]:
    ahead = {identity(variant.launch) for part in parts() for variant in variants(part, CARD)}
    return (f"{who}: {launch}" for launch, who in noted.items() if launch not in ahead)


def main() -> None:
    noted: dict[str, str] = {}
    now = ["device_check"]
    Launch.run = lambda launch: noted.setdefault(identity(launch), now[0])
    results._copy = lambda _source, _target: None  # nothing comes home from the meta device
    os.environ["TRITON_INTERPRET"] = "1"  # from here on: dry runs that go through the kernels
    torch.set_num_threads(1)
    check_a_card()
    for part in parts():
        if part.geometry not in MODELS:
            continue
        shape = config_of(GEOMETRIES[part.geometry])
        for form in (None, *NARROW):
            now[0] = f"{part.geometry}, {part.dtype}, cache {form}"
            serve(shape, part.dtype, 8, form)
    print("kernels launched:", len({launch.split()[0] for launch in noted}))
    print(*not_compiled(noted), sep="\n", end="")


if __name__ == "__main__":
    main()
