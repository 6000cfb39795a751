"""A launch may not wait for the device: nothing between a plan and its draws reads a number back.

On torch's meta device, which holds no numbers, every operator that needs one fails.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.core.plan import Sampling
from engine.runtime.batch_state import BatchState
from engine.runtime.gpu.device import Device
from engine.runtime.gpu.inputs import Staging, lay_out, pad
from engine.runtime.gpu.pool import TokenPool
from engine.runtime.loader import build_model
from engine.runtime.random_weights import RandomWeights
from engine.runtime.sampler import draw, prepare
from tests.runtime.driver import BLOCK, TINY, Row, join, plan

META = torch.device("meta")
SHAPE = replace(TINY, architecture="Qwen3ForCausalLM", qk_norm=True, qkv_bias=True)
SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(temperature=0.8, top_p=0.9, top_k=5, min_p=0.1, seed=3),
    Sampling(temperature=0.0, presence_penalty=1.0, repetition_penalty=1.5, logprobs=3),
    Sampling(temperature=1.0, logit_bias=((4, 2.0),), min_tokens=3, stop_token_ids=(5,)),
)


class NoNumbers(Device):
    """A device whose memory holds nothing."""

    place = META

    def pinned(self, size, dtype):
        return torch.zeros(size, dtype=dtype)


def greedy(scores, best, inputs):
    """Stands for the kernel that draws."""
    return scores.argmax(-1)


@pytest.mark.parametrize("size", [None, 8])
def test_nothing_is_read_back_between_a_plan_and_its_draws(size):
    weights = RandomWeights(SHAPE, torch.float32, torch.device("cpu"))
    model = build_model(SHAPE, weights, torch.float32, META)
    state = BatchState(8, 64, BLOCK, SHAPE.vocab_size)
    pool = TokenPool(NoNumbers(), state)
    staging = Staging(NoNumbers(), 64, 8, 64)
    joins = tuple(join(i, [1, 2, 3 + i], [i], given) for i, given in enumerate(SAMPLINGS))
    counts = (1, 1, 1, 1) if size else (1, 3, 1, 3)
    step = plan([Row(i, 3 - n, n) for i, n in enumerate(counts)], joined=joins)
    change = pool.change(step, state.apply(step))
    assert change is not None
    rows = lay_out(step, state, BLOCK, lambda *_: np.empty((0, 4), np.int32))
    rows = pad(rows, size) if size else rows
    into, source = staging.write(rows, 0)
    views = staging.views(rows.shape)
    inputs = prepare(step.slots, state)
    keep = pool.keeper(step.slots, state.promise(step.slots))
    with torch.inference_mode():
        change()
        into.copy_(source, non_blocking=True)
        tokens = pool.tokens_at(views.token_at)
        hidden = model.compute(
            tokens,
            views.positions.long(),
            torch.arange(4, device=META),
            lambda _layer, qkv: qkv[:, : SHAPE.num_heads].reshape(len(qkv), -1),
        )
        drawn = draw(model.head(hidden), inputs, pool.history, greedy)
        keep(drawn.tokens)
    assert drawn.tokens.shape == (4,)
    assert drawn.logprobs is not None
    assert drawn.logprobs.shape == (1, 4)
