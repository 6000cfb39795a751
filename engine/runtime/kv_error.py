"""What an 8-bit KV cache costs a model's predictions, on a text and on the CPU.

    python -m engine.runtime.kv_error MODEL FILE [FILE ...]

Every position of the text is predicted by the model in fp32, with the cache in fp32 and in each
8-bit format; bf16 of weights and cache stands beside them as a measure. MODEL is an installed
model, a folder or a .gguf file.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import IntArray
from engine.runtime.attention import GatherAttention
from engine.runtime.kv_cache import KVCache
from engine.runtime.loader import load_model
from engine.runtime.model import LlamaModel
from engine.runtime.ragged import ragged
from engine.runtime.store import ModelStore
from engine.runtime.text.codec import TextCodec

WINDOW = 1024  # tokens that are predicted from each other
MOST = 8  # windows
BLOCK = 16
FORMATS = {"fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


@dataclass(frozen=True, slots=True)
class Difference:
    """Of the predictions of two caches, over all positions.

    `logit` is the root mean square difference of logits, as a share of their standard deviation;
    `divergence` the mean Kullback-Leibler divergence in nats; `same` the share of positions whose
    most likely token is the same; `loss` how much the mean loss of the text rises, in nats.
    """

    logit: float
    divergence: float
    same: float
    loss: float


def log_odds(model: LlamaModel, tokens: IntArray, stored: torch.dtype | None) -> Tensor:
    """float32 logits [T, vocab] of every position, with a cache in the format `stored`."""
    blocks = -(-len(tokens) // BLOCK)
    cpu = torch.device("cpu")
    cache = KVCache(model.config, blocks, BLOCK, model.dtype, cpu, stored=stored)
    start, tables = np.zeros(1, np.int32), np.arange(blocks, dtype=np.int32)[None]
    count = np.array([len(tokens)], np.int32)
    batch = ragged(np.zeros(1, np.int64), start, count, tokens[None], tables)
    with torch.inference_mode():
        everything = torch.arange(len(tokens))
        return model.forward(batch, everything, GatherAttention(model.config, cache)).float()


def difference(exact: Tensor, found: Tensor, tokens: IntArray) -> Difference:
    """Of two sets of logits [T, vocab] for the text `tokens` [T]."""
    spread = (exact - exact.mean(-1, keepdim=True)).square().mean().sqrt()
    before, after = exact.log_softmax(-1), found.log_softmax(-1)
    following = torch.from_numpy(tokens[1:].astype(np.int64)).unsqueeze(1)
    losses = [-odds[:-1].gather(1, following).mean() for odds in (before, after)]
    return Difference(
        logit=float((found - exact).square().mean().sqrt() / spread),
        divergence=float((before.exp() * (before - after)).sum(-1).mean()),
        same=float((exact.argmax(-1) == found.argmax(-1)).float().mean()),
        loss=float(losses[1] - losses[0]),
    )


def windows(tokens: list[int]) -> Iterator[IntArray]:
    """The text in pieces of WINDOW tokens, MOST of them at most."""
    for first in range(0, min(len(tokens) - WINDOW + 1, MOST * WINDOW), WINDOW):
        yield np.array(tokens[first : first + WINDOW], np.int32)


def _rows(path: Path, texts: list[IntArray]) -> Iterator[tuple[str, Difference]]:
    model = load_model(path, torch.float32)
    exact = [log_odds(model, tokens, None) for tokens in texts]
    bf16 = load_model(path, torch.bfloat16)
    narrow = ((f"fp32, cache {name}", model, form) for name, form in FORMATS.items())
    for name, of, stored in (("bf16, weights and cache", bf16, None), *narrow):
        found = [
            difference(before, log_odds(of, tokens, stored), tokens)
            for before, tokens in zip(exact, texts, strict=True)
        ]
        means = np.mean([(one.logit, one.divergence, one.same, one.loss) for one in found], 0)
        yield name, Difference(*means.tolist())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    options = parser.parse_args()
    path = ModelStore().path(options.model)
    text = "\n".join(file.read_text() for file in options.files)
    texts = list(windows(TextCodec.load(path).encode(text, add_special=False)))
    if not texts:
        sys.stderr.write(f"error: the text has fewer than {WINDOW} tokens\n")
        return 2
    print(f"{len(texts) * WINDOW} tokens in windows of {WINDOW}\n")
    print("| format | logit error | divergence, nats | same top token | loss |")
    print("| --- | --- | --- | --- | --- |")
    for name, found in _rows(path, texts):
        print(
            f"| {name} | {found.logit:.2%} | {found.divergence:.5f} | {found.same:.2%} "
            f"| {found.loss:+.5f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
