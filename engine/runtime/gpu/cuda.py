"""The device seam on CUDA: streams, events, page-locked memory, graphs."""

import threading

import torch
from torch import Tensor

from engine.runtime.gpu.device import Compute, Mark, Work

# Torch allows one capture at a time in a process, and engines may start on threads of their own.
_capturing = threading.Lock()


class CudaMark:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def wait(self) -> None:
        self.event.synchronize()

    def nanoseconds_since(self, earlier: Mark) -> int:
        assert isinstance(earlier, CudaMark)  # marks of two devices never meet
        milliseconds: float = earlier.event.elapsed_time(self.event)
        return round(milliseconds * 1e6)


class CudaQueue:
    """A stream: work is launched at once, on the calling thread, and done in its own time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, work: Work) -> None:
        with torch.cuda.stream(self._stream), torch.inference_mode():
            work()

    def mark(self) -> CudaMark:
        return CudaMark(self._stream)

    def after(self, mark: Mark) -> None:
        assert isinstance(mark, CudaMark)  # marks of two devices never meet
        self._stream.wait_event(mark.event)


class CudaDevice:
    """One card. All graphs share one memory pool, so the largest should be captured first."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def place(self) -> torch.device:
        return self._device

    def queue(self) -> CudaQueue:
        # what was launched so far (weights, empty caches) is on torch's default stream, which ours
        # do not wait for; to wait for the whole card would break another engine's capture
        torch.cuda.default_stream(self._device).synchronize()
        return CudaQueue(self._device)

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype, pin_memory=True)

    def capture(self, compute: Compute) -> Compute:
        # the first run compiles kernels and lets libraries allocate, neither of which a graph may
        with torch.cuda.stream(self._side), torch.inference_mode():
            compute()
        self._side.synchronize()
        graph = torch.cuda.CUDAGraph()
        # another engine may load its model on another thread meanwhile
        recording = torch.cuda.graph(
            graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"
        )
        with _capturing, torch.inference_mode(), recording:
            result = compute()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay
