"""Whether a launch waits for the device: torch tells of every operator that does."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from engine.core.config import KernelConfig
from engine.core.plan import Sampling
from engine.runtime.device_check.report import Row
from engine.runtime.device_check.steps import GREEDY, Batch
from engine.runtime.device_check.target import Target
from engine.runtime.gpu.executor import GpuExecutor

STEPS = 4
WAITED = "called a synchronizing CUDA operation"  # in what torch says of it
KINDS = {
    "greedy": GREEDY,
    "drawn by chance": Sampling(temperature=0.8, top_p=0.9, top_k=40, min_p=0.01),
    "with penalties and log-probabilities": Sampling(presence_penalty=0.5, logprobs=3),
}


def waiting_rows(target: Target, executor: GpuExecutor, config: KernelConfig) -> Iterator[Row]:
    """For each kind of draw: operators that made the host wait within some launches."""
    if target.dry:
        yield Row("launches that wait for the device", note="a dry run has no card")
        return
    for kind, sampling in KINDS.items():
        batch = Batch(4, 100, config, room=STEPS, sampling=sampling)
        waits: list[str] = []
        for step in range(STEPS):
            with _told() as told:
                ticket = executor.launch(batch.decode(step))
            waits += places(told)
            executor.wait(ticket)
        executor.wait(executor.launch(batch.leave()))
        name = f"operators that wait in {STEPS} launches, {kind}"
        where = ", ".join(sorted(set(waits)))
        yield Row(name, len(waits), goal=0, at_most=True, must=True, note=where)


def places(told: Sequence[warnings.WarningMessage]) -> list[str]:
    """Where torch saw the host wait; it also warns that the watching itself is a prototype."""
    return [
        f"{Path(warning.filename).name}:{warning.lineno}"
        for warning in told
        if WAITED in str(warning.message)
    ]


@contextmanager
def _told() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as waiting:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waiting
        finally:
            torch.cuda.set_sync_debug_mode("default")
