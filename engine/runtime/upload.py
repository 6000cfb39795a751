"""Small arrays on their way to the device."""

import numpy as np
import torch
from torch import Tensor


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """`array` on `device`, without waiting for what the device still does.

    A copy from ordinary memory would wait for the stream; one from pinned memory is put in line.
    Torch's pinned allocator keeps the memory until the copy is done, and hands it out again.
    """
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
