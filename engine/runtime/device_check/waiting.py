"""Whether a launch waits for the device: torch tells of every operator that does."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.core.config import KernelConfig
from engine.core.plan import Sampling
from engine.runtime.device_check.report import Row
from engine.runtime.device_check.steps import GREEDY, Batch
from engine.runtime.device_check.target import Target
from engine.runtime.gpu.executor import GpuExecutor

STEPS = 4
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
        waits = 0
        for step in range(STEPS):
            with _told() as waiting:
                ticket = executor.launch(batch.decode(step))
            waits += len(waiting)
            executor.wait(ticket)
        executor.wait(executor.launch(batch.leave()))
        name = f"operators that wait in {STEPS} launches, {kind}"
        yield Row(name, waits, goal=0, at_most=True, must=True)


@contextmanager
def _told() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as waiting:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waiting
        finally:
            torch.cuda.set_sync_debug_mode("default")
