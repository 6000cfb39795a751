"""The seam to a device that works on its own: queues, marks, pinned memory and graphs."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Work = Callable[[], None]
Compute = Callable[[], Tensor]


class Mark(Protocol):
    """A place in a queue."""

    def wait(self) -> None:
        """Block until all work before the mark is done; raises what that work raised."""
        ...

    def nanoseconds_since(self, earlier: "Mark") -> int:
        """Time that the device took from one mark to another; both must have been waited for."""
        ...


class Queue(Protocol):
    """Work that the device does in the order in which it was handed over, and later.

    Work may read only what nobody changes before it is done: tensors on the device, pinned memory
    that is left alone, and arrays of its own.
    """

    def run(self, work: Work) -> None:
        """Hand over `work`; it may be done at any time from now on."""
        ...

    def mark(self) -> Mark:
        """The place behind all that was handed over."""
        ...

    def after(self, mark: Mark) -> None:
        """What is handed over from now on begins after another queue has passed `mark`."""
        ...


class Device(Protocol):
    """Where tensors live and queues run."""

    @property
    def place(self) -> torch.device: ...

    def queue(self) -> Queue:
        """Another queue, beside those there are."""
        ...

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        """Host memory [size] that the device copies from and to on its own."""
        ...

    def capture(self, compute: Compute) -> Compute:
        """`compute` as one piece of work that costs a single launch, for use inside `Queue.run`.

        Each call computes again from what the tensors that `compute` read then hold, and
        overwrites the tensor that it returned before. Must not be called with work under way.
        """
        ...
