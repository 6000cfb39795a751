"""Decode steps as graphs, one for each size of a padded batch."""

import bisect
from collections.abc import Callable

from torch import Tensor

from engine.runtime.gpu.device import Compute, Device

LARGEST = 512  # rows of a graph: more keep a card busy for longer than their launches take


def buckets(largest: int) -> tuple[int, ...]:
    """Batch sizes with a graph, ascending: 1, 2, 4, 8, then steps of 8 to 64, 16 to 256, 32 to 512.

    The last holds `largest` rows, if any does: at most 31 graphs. A batch is padded by at most 7
    rows up to 64, 15 up to 256, and 31 above.
    """
    sizes = [1, 2, 4, 8, *range(16, 65, 8), *range(80, 257, 16), *range(288, LARGEST + 1, 32)]
    smaller = [size for size in sizes if size < largest]
    return tuple(sizes[: len(smaller) + 1])


def most_rows(max_running: int) -> int:
    """Rows of the largest step that decodes, padding included."""
    return max(max_running, buckets(max_running)[-1])


class DecodeGraphs:
    """A graph for every bucket up to `largest` rows.

    `ready(size)` puts rows of padding where a batch of this size will stand, and returns what
    computes it.
    """

    def __init__(self, device: Device, largest: int, ready: Callable[[int], Compute]) -> None:
        self.sizes = buckets(largest)
        # the largest first: the smaller ones fit into the memory that it leaves in the pool
        self._graphs: dict[int, Compute] = {
            size: device.capture(ready(size)) for size in reversed(self.sizes)
        }

    def size_for(self, rows: int) -> int | None:
        """The smallest bucket that holds `rows`; None if there is none."""
        at = bisect.bisect_left(self.sizes, rows)
        return self.sizes[at] if at < len(self.sizes) else None

    def run(self, size: int) -> Tensor:
        """Replay; the result stands until the next replay of this size."""
        return self._graphs[size]()
