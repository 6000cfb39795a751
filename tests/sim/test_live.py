"""The engine in this process, on executors that keep two steps in flight, and its KV format."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.runtime.gpu.build import fake_executor, make_executor
from engine.runtime.kv_cache import KVCache
from loadgen.live import LiveEngine, LiveError, LiveModel, ObservedExecutor
from loadgen.profiling import host_link
from tests.kernel.world import World
from tests.runtime.driver import tiny_config, tiny_model

MODEL = tiny_model()
CONFIG = replace(tiny_config(), max_in_flight=2)


@pytest.mark.parametrize("seed", [1, 2])
def test_steps_are_taken_in_beside_those_in_flight(seed):
    """Four sequences are there at once; from then on all is computed, on an asynchronous device."""
    executor = fake_executor(MODEL, CONFIG, seed)
    executor.warm_up()
    observed = ObservedExecutor(executor, CONFIG.block_size)
    observed.fill_until = 4
    world = World(CONFIG, executor=observed)
    for number in range(4):
        world.submit("a", np.arange(20 + number).tolist(), 12)
    world.run()
    world.check_idle()
    assert [len(tokens) for tokens in world.tokens.values()] == [12] * 4
    shapes = list(observed.shapes.values())
    assert shapes[0].decode_sequences == 4
    assert not any(shape.prefill_tokens for shape in shapes)


def test_an_engine_stores_kv_as_its_blocks_were_counted():
    """A CPU's cache has the model's format alone, and says so."""
    narrow = LiveModel("tiny", MODEL, tiny_config(), threads=1, kv_dtype=torch.float8_e5m2)

    async def start() -> None:
        async with LiveEngine(narrow, narrow.kernel):
            pass

    with pytest.raises(LiveError, match=r"the model's torch\.float32, not torch\.float8"):
        asyncio.run(start())
    same = make_executor(MODEL, tiny_config(), torch.float32)
    assert same.cache.stored == torch.float32


def test_moves_are_measured_with_the_blocks_that_are_moved():
    wide = LiveModel("tiny", MODEL, tiny_config(), threads=1)
    narrow = replace(wide, kv_dtype=torch.float8_e5m2)
    cache = KVCache(MODEL.config, 1, CONFIG.block_size, MODEL.dtype, MODEL.device, 1)
    for model, share in ((wide, 1), (narrow, 4)):
        link = host_link(model)
        assert link.bytes_per_token * CONFIG.block_size * share == cache.host[0].nbytes
        assert not link.overlap
    on_card = replace(wide, kernel=replace(wide.kernel, host_overlap=True))
    assert host_link(on_card).overlap
