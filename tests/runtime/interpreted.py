"""Run by `test_gpu_triton` where TRITON_INTERPRET is set."""

import math
from dataclasses import replace

import numpy as np
import torch

from engine.core.plan import Sampling
from engine.runtime.executor import TorchExecutor
from engine.runtime.gpu.build import interpreted_executor
from engine.runtime.loader import build_model
from tests.runtime.driver import GREEDY, TINY, RandomWeights, generate, tiny_config

CPU = torch.device("cpu")
SHAPE = replace(TINY, head_dim=16, hidden_size=64)
CONFIG = tiny_config(num_blocks=12, max_running=3, max_step_tokens=48, max_context=48)
PROMPTS = [np.random.default_rng(i).integers(0, 97, n).tolist() for i, n in enumerate((5, 33, 17))]
DRAWN = [
    Sampling(temperature=0.8, seed=1, top_p=0.9),
    Sampling(temperature=0.0, logprobs=2),
    Sampling(temperature=1.2, seed=3, top_k=7, min_p=0.02, presence_penalty=0.4),
]
# of the model and of its cache
NARROW = ((torch.float16, torch.float8_e4m3fn), (torch.bfloat16, torch.float8_e5m2))


def main() -> None:
    torch.set_num_threads(1)
    model = build_model(SHAPE, RandomWeights(SHAPE), torch.float32, CPU)
    late = interpreted_executor(model, CONFIG, 1)
    late.cache.blocks.fill_(math.nan)  # nothing may depend on what the pool holds at first
    late.warm_up()
    same = 0
    for sampling in (GREEDY, DRAWN):
        options = {"new_tokens": 5, "chunk": 20, "sampling": sampling}
        serial = generate(TorchExecutor(model, CONFIG), CONFIG, PROMPTS, **options)
        texts = generate(late, CONFIG, PROMPTS, **options)
        same += [text.output for text in texts] == [text.output for text in serial]
    for dtype, kv_dtype in NARROW:
        narrow = build_model(SHAPE, RandomWeights(SHAPE), dtype, CPU)
        serial = interpreted_executor(narrow, CONFIG, graphs=False, kv_dtype=kv_dtype)
        late = interpreted_executor(narrow, CONFIG, 2, kv_dtype=kv_dtype)
        late.warm_up()
        texts, expected = (
            generate(made, CONFIG, PROMPTS, new_tokens=3, chunk=40) for made in (late, serial)
        )
        same += [text.output for text in texts] == [text.output for text in expected]
    print(f"same text: {same}")


if __name__ == "__main__":
    main()
