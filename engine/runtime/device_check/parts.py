"""The parts of the check: what each looks at, and how long it may take.

Each runs in a process of its own, so that a fault on the card, or a kernel that never ends, costs
the findings of one part alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.runtime.device_check.correctness import kernel_checks, text_row
from engine.runtime.device_check.kernels import kernel_rows
from engine.runtime.device_check.limits import limit_rows, measure_limits
from engine.runtime.device_check.loaded import load, narrow_rows, step_rows
from engine.runtime.device_check.mixed import mixed_rows
from engine.runtime.device_check.peers import peer_rows
from engine.runtime.device_check.report import Row
from engine.runtime.device_check.target import Target
from engine.runtime.model_config import ModelConfig

Find = Callable[[Target, ModelConfig], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class Part:
    """`usual` is a guess of its seconds on a large card, to plan with; at `limit` it is ended."""

    name: str
    does: str
    usual: int
    limit: int
    rows: Find


def _limits(target: Target, shape: ModelConfig) -> Iterator[Row]:
    return limit_rows(target, shape)


def _text(target: Target, _shape: ModelConfig) -> Iterator[Row]:
    yield text_row(target)


def _times(target: Target, shape: ModelConfig) -> Iterator[Row]:
    return kernel_rows(target, shape, measure_limits(target))


def _mixed(target: Target, shape: ModelConfig) -> Iterator[Row]:
    loaded = load(target, shape)
    loaded.executor.warm_up()
    return mixed_rows(target, loaded.executor, loaded.config)


PARTS = (
    Part("limits", "what memory and matrix units do at best", 15, 90, _limits),
    Part("text", "overlapped text is serial text, through streams and graphs", 25, 90, _text),
    Part("kernels", "every kernel against float64 or plain torch", 95, 180, kernel_checks),
    Part("steps", "decode steps, the gap between them, prefill", 60, 120, step_rows),
    Part("mixed", "256 requests; without overlap; without graphs", 75, 120, _mixed),
    Part("times", "kernels alone, beside the limits", 35, 100, _times),
    Part("fp8", "decode steps with an 8-bit cache", 30, 75, narrow_rows),
    Part("peer", "the same 256 requests on transformers", 120, 180, peer_rows),
)
