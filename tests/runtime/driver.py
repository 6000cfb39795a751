"""A minimal driver of the executor with hand-made plans: no policy, every choice spelled out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.core.config import KernelConfig
from engine.core.plan import Join, Sampling, StepPlan, StepResult, TokenLogprob
from engine.runtime.executor import TorchExecutor
from engine.runtime.loader import build_model
from engine.runtime.model import LlamaModel
from engine.runtime.model_config import ModelConfig, RopeScaling
from engine.runtime.weights import tensor_shape, weight_names

GREEDY = Sampling(temperature=0.0)
BLOCK = 16

TINY = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    context_length=256,
    rms_eps=1e-5,
    rope_theta=10_000.0,
    rope=RopeScaling(),
    tied_head=False,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
)


class RandomWeights:
    """A weight source of random tensors, the same for the same seed."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tensors = {}
        for name in weight_names(config):
            shape = tensor_shape(name, config)
            noise = torch.randn(shape, generator=generator)
            self.tensors[name] = noise * 0.1 + 1 if "norm" in name else noise * shape[-1] ** -0.5

    def get(self, name: str) -> torch.Tensor:
        return self.tensors[name]


def tiny_model(seed: int = 0) -> LlamaModel:
    return build_model(TINY, RandomWeights(TINY, seed), torch.float32, torch.device("cpu"))


def tiny_config(**changes: int) -> KernelConfig:
    sizes = {
        "num_blocks": 64,
        "max_running": 8,
        "max_step_tokens": 256,
        "max_context": 256,
        "vocab_size": TINY.vocab_size,
    }
    return KernelConfig(**(sizes | changes))


@dataclass(frozen=True)
class Row:
    """One row of a plan; `logits` names another row to draw from."""

    slot: int
    start: int
    count: int
    samples: bool = True
    logits: int | None = None
    drafts: int = 0


def plan(rows: Sequence[Row], step: int = 0, **more: object) -> StepPlan:
    def column(values: list[int], kind: type = np.int32) -> np.ndarray:
        return np.array(values, kind)

    return StepPlan(
        step=step,
        sequences=column([row.slot for row in rows], np.int64),
        slots=column([row.slot for row in rows], np.int64),
        starts=column([row.start for row in rows]),
        counts=column([row.count for row in rows]),
        drafts=column([row.drafts for row in rows]),
        samples=np.array([row.samples for row in rows], np.bool_),
        logits_rows=column(
            [i if r.logits is None else r.logits for i, r in enumerate(rows)], np.int64
        ),
        **more,
    )


def join(
    slot: int,
    tokens: Sequence[int],
    blocks: Sequence[int],
    sampling: Sampling = GREEDY,
    prompt=None,
) -> Join:
    return Join(
        slot=slot,
        sequence=slot,
        tokens=np.array(tokens, np.int32),
        prompt_length=len(tokens) if prompt is None else prompt,
        blocks=np.array(blocks, np.int32),
        sampling=sampling,
    )


def run(executor: TorchExecutor, step_plan: StepPlan) -> StepResult:
    return executor.wait(executor.launch(step_plan))


@dataclass
class Text:
    """A sequence as the driver sees it."""

    tokens: list[int]
    prompt: int
    goal: int
    sampling: Sampling
    slot: int = -1
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt :]


def generate(
    executor: TorchExecutor,
    config: KernelConfig,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    chunk: int = 10_000,
    sampling: Sequence[Sampling] | Sampling = GREEDY,
    seed: int = 0,
) -> list[Text]:
    """Run all prompts as one batch: every step decodes what can decode and computes one chunk of
    each unfinished prompt. Blocks come from the pool in random order, one at a time."""
    samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
    texts = [
        Text(list(prompt), len(prompt), len(prompt) + new_tokens, given)
        for prompt, given in zip(prompts, samplings, strict=True)
    ]
    free = np.random.default_rng(seed).permutation(config.num_blocks).tolist()
    joins = []
    for slot, text in enumerate(texts):
        text.slot = slot
        joins.append(join(slot, text.tokens, [], text.sampling))
    joined, step = tuple(joins), 0
    while running := [text for text in texts if len(text.tokens) < text.goal]:
        rows, grown, budget = [], [], config.max_step_tokens
        for text in running:
            count = min(chunk, len(text.tokens) - text.computed, budget)
            budget -= count
            end = text.computed + count
            while count and len(text.blocks) * BLOCK < end:
                text.blocks.append(free.pop())
                grown.append((text.slot, text.blocks[-1]))
            if count:
                rows.append((text, Row(text.slot, text.computed, count, end == len(text.tokens))))
        result = run(
            executor,
            plan(
                [row for _, row in rows],
                step,
                joined=joined,
                grown_slots=np.array([slot for slot, _ in grown], np.int64),
                grown_blocks=np.array([block for _, block in grown], np.int32),
            ),
        )
        assert not result.failures
        drawn = iter(result.tokens.tolist())
        for index, (text, row) in enumerate(rows):
            text.computed += row.count
            text.tokens += [next(drawn) for _ in range(result.token_counts[index])]
            text.logprobs += result.logprobs.get(index, ())
        joined, step = (), step + 1
    run(executor, plan([], step, left=tuple(range(len(texts)))))
    return texts
