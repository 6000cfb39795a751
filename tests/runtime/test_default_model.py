"""Numerics of the default model against Hugging Face transformers in float32."""

import numpy as np
import pytest
import torch

from engine.core.config import KernelConfig
from engine.core.plan import Sampling
from engine.runtime.executor import TorchExecutor
from engine.runtime.kv_cache import KVCache
from engine.runtime.loader import load_model, load_quickest
from engine.runtime.ragged import ragged
from engine.runtime.text.codec import TextCodec
from tests.runtime.driver import generate
from tests.runtime.texts import PROMPTS, TEXTS

pytestmark = pytest.mark.model

CONFIG = KernelConfig(num_blocks=512, max_running=32, max_step_tokens=512, max_context=512)
LENGTH = 128


@pytest.fixture(scope="module")
def codec(model_path):
    return TextCodec.load(model_path)


@pytest.fixture(scope="module")
def text_ids(codec):
    """int64 [5, 128]."""
    return np.array([codec.encode(text, add_special=False)[:LENGTH] for text in TEXTS])


@pytest.fixture(scope="module")
def prompt_ids(codec):
    return [codec.encode(prompt, add_special=False) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def reference(model_path):
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def reference_logits(reference, text_ids):
    with torch.inference_mode():
        return reference(torch.from_numpy(text_ids)).logits


@pytest.fixture(scope="module")
def exact_model(model_path):
    return load_model(model_path, torch.float32)


@pytest.fixture(scope="module")
def greedy_texts(exact_model, prompt_ids):
    return outputs(exact_model, prompt_ids, new_tokens=64)


def outputs(model, prompts, **options):
    executor = TorchExecutor(model, CONFIG)
    return [text.output for text in generate(executor, CONFIG, prompts, **options)]


def forced_logits(model, ids, steps):
    """Logits of all positions of the sequences `ids` [R, n], all rows advancing by `steps`."""
    rows, length = ids.shape
    cache = KVCache(model.config, 64, 16, model.dtype, model.device)
    forward = model.bind(cache)
    tables = np.random.default_rng(0).permutation(64).astype(np.int32)[: rows * 8].reshape(rows, 8)
    slots = np.arange(rows)
    parts, start = [], 0
    with torch.inference_mode():
        for count in steps:
            starts, counts = np.full(rows, start, np.int32), np.full(rows, count, np.int32)
            batch = ragged(slots, starts, counts, ids.astype(np.int32), tables)
            every = torch.arange(rows * count)
            parts.append(forward(batch, every).float().view(rows, count, -1))
            start += count
    assert start == length
    return torch.cat(parts, 1)


def test_logits_match_transformers(exact_model, text_ids, reference_logits):
    actual = forced_logits(exact_model, text_ids, [50, 1, 70, 7])
    error = (actual - reference_logits).norm(dim=-1) / reference_logits.norm(dim=-1)
    assert error.max() <= 1e-4


def test_greedy_texts_match_transformers(reference, prompt_ids, greedy_texts):
    """Greedy text is identical if each of our tokens is the reference's best after those before."""
    longest = max(len(ids) for ids in prompt_ids) + 64
    padded = np.zeros((len(prompt_ids), longest), np.int64)
    for row, (prompt, output) in enumerate(zip(prompt_ids, greedy_texts, strict=True)):
        padded[row, : len(prompt) + 64] = prompt + output
    with torch.inference_mode():
        best = reference(torch.from_numpy(padded)).logits.argmax(-1)
    for row, (prompt, output) in enumerate(zip(prompt_ids, greedy_texts, strict=True)):
        assert best[row, len(prompt) - 1 : len(prompt) + 63].tolist() == output


def test_greedy_text_is_the_same_alone_and_chunked(exact_model, prompt_ids, greedy_texts):
    for index in (0, 6, 19):
        alone = outputs(exact_model, [prompt_ids[index]], new_tokens=32)[0]
        assert alone == greedy_texts[index][:32]
    # the generated text as a long prompt, in chunks of several sizes, all sequences in one batch
    prompts = [ids + text[:40] for ids, text in zip(prompt_ids, greedy_texts, strict=True)]
    for chunk in (3, 16, 33):
        chunked = outputs(exact_model, prompts, new_tokens=8, chunk=chunk, seed=chunk)
        assert chunked == [text[40:48] for text in greedy_texts]


def test_seeded_text_is_the_same_alone_and_batched(exact_model, prompt_ids):
    samplings = [Sampling(temperature=1.0, seed=index) for index in range(len(prompt_ids))]
    batched = outputs(exact_model, prompt_ids, new_tokens=32, sampling=samplings)
    for index in (2, 11, 18):
        alone = outputs(
            exact_model, [prompt_ids[index]], new_tokens=32, sampling=[samplings[index]], chunk=2
        )
        assert alone == [batched[index]]


@pytest.mark.parametrize("steps", [[LENGTH], [16] + [1] * (LENGTH - 16)], ids=["whole", "decode"])
def test_bf16_log_probabilities_stay_close(model_path, text_ids, reference_logits, steps):
    model = load_quickest(model_path, torch.bfloat16)
    actual = forced_logits(model, text_ids, steps).log_softmax(-1)[:, :-1]
    expected = reference_logits.log_softmax(-1)[:, :-1]
    following = torch.from_numpy(text_ids)[:, 1:, None]
    difference = (actual.gather(2, following) - expected.gather(2, following)).abs()
    assert difference.mean() <= 0.03
    assert difference.max() <= 0.25
