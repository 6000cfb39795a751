"""How fast KV moves between device and host, measured where it will be moved."""

import time
from statistics import median

import torch

from engine.core.plan import Transfer
from engine.runtime.kv_cache import KVCache

REPEATS = 4  # the first of which is not counted


def seconds_a_block(cache: KVCache) -> float:
    """Time that one block takes to the host or back, whichever is slower, among many.

    Moves all blocks of `cache`, which must have as many on the host.
    """
    return max(_seconds(cache, to_host=to_host) for to_host in (True, False))


def _seconds(cache: KVCache, *, to_host: bool) -> float:
    moves = [Transfer(block, block, to_host) for block in range(cache.num_blocks)]
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        cache.transfer(moves)
        if cache.blocks.device.type == "cuda":
            torch.cuda.synchronize(cache.blocks.device)
        times.append(time.perf_counter() - began)
    return median(times[1:]) / len(moves)
