"""Draws on the device are those of the CPU's sampler."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.runtime.draws import gumbel, noise_keys
from engine.runtime.kernels import SampleInputs, SampleScratch, sample
from engine.runtime.kernels.sampling import CHUNK
from engine.runtime.logits import keep_likely

pytestmark = pytest.mark.kernels
CPU = torch.device("cpu")
ROW = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        "top_p": st.sampled_from([1.0, 0.95, 0.5, 0.01]),
        "top_k": st.sampled_from([0, 1, 5, 50]),
        "min_p": st.sampled_from([0.0, 0.05, 1.0]),
        "seed": st.integers(0, 2**64 - 1),
        "draw": st.integers(0, 5000),
    }
)
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 0, "draw": 0}


def drawn(logits, rows):
    """(tokens, best) of the kernel, from poisoned scratch and outputs."""
    column = {name: [row[name] for row in rows] for name in PLAIN}
    seeds = np.array(column["seed"], np.uint64).view(np.int64)
    inputs = SampleInputs(
        temperature=torch.tensor(column["temperature"]),
        top_p=torch.tensor(column["top_p"]),
        top_k=torch.tensor(column["top_k"], dtype=torch.int32),
        min_p=torch.tensor(column["min_p"]),
        seed=torch.from_numpy(seeds),
        draws=torch.tensor(column["draw"], dtype=torch.int32),
    )
    scratch = SampleScratch.allocate(len(rows), logits.shape[1], CPU)
    for floats in (scratch.tops, scratch.sums, scratch.scores):
        floats.fill_(math.nan)
    for tokens in (scratch.top_tokens, scratch.score_tokens):
        tokens.fill_(-7)
    tokens, best = torch.full((len(rows),), -7), torch.full((len(rows),), math.nan)
    sample(logits, inputs, scratch, tokens, best)
    return tokens, best


def expected(logits, rows):
    """The same by `keep_likely` and `gumbel`, row by row."""
    tokens = []
    for exact, row in zip(logits.float(), rows, strict=True):
        if row["temperature"] == 0:
            tokens.append(int(exact.argmax()))
            continue
        heated = ((exact - exact.max()) / row["temperature"]).unsqueeze(0)
        filters = (np.array([row["top_k"]]), np.array([row["top_p"]]), np.array([row["min_p"]]))
        keep_likely(heated, *filters)
        seed, draw = np.array([row["seed"]], np.uint64), np.array([row["draw"]], np.int32)
        noise = gumbel(torch.from_numpy(noise_keys(seed, draw)), len(exact))
        tokens.append(int((heated + noise).argmax()))
    return tokens


@settings(max_examples=40, deadline=None)
@given(
    st.lists(ROW, min_size=1, max_size=4),
    st.sampled_from([7, CHUNK - 1, CHUNK, CHUNK + 1, 20_000]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([1.0, 4.0]),
    st.integers(0, 99),
)
def test_draws_are_those_of_the_cpu(rows, vocab, dtype, spread, seed):
    draw = torch.Generator().manual_seed(seed)
    logits = (torch.randn(len(rows), vocab, generator=draw) * spread).to(dtype)
    tokens, best = drawn(logits, rows)
    assert tokens.tolist() == expected(logits, rows)
    assert torch.equal(best, logits.float().amax(-1))


def test_no_batch_changes_a_draw():
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 9000, generator=draw)
    rows = [PLAIN | {"seed": seed, "draw": seed % 3, "top_p": 0.9} for seed in range(6)]
    together, _ = drawn(logits, rows)
    for row in range(6):
        # the same sequence in another row, beside others, out of a longer logits' row
        padded = torch.zeros(2, 9100)[:, :9000]
        padded[1] = logits[row]
        alone, _ = drawn(padded, [PLAIN, rows[row]])
        assert alone[1] == together[row]
    assert len(set(together.tolist())) > 3


def test_equal_logits_give_the_first_and_filters_keep_ties():
    logits = torch.zeros(1, 9000)
    logits[0, [8500, 40, 700]] = 2.0
    assert drawn(logits, [PLAIN | {"temperature": 0.0}])[0].tolist() == [40]
    seen = {
        int(drawn(logits, [PLAIN | {"top_k": 1, "top_p": top_p, "seed": seed}])[0])
        for seed in range(12)
        for top_p in (1.0, 0.5)
    }
    assert seen == {40, 700, 8500}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_finite_best_is_told_and_alone(temperature):
    logits = torch.randn(4, 9000)
    logits[0, 8999] = math.nan
    logits[1, 5] = math.inf
    logits[2] = -math.inf
    tokens, best = drawn(logits, [PLAIN | {"temperature": temperature}] * 4)
    assert best[0].isnan()
    assert best[1] == math.inf
    assert best[2] == -math.inf
    assert best[3] == logits[3].max()
    assert ((tokens >= 0) & (tokens < 9000)).all(), "the next step may read a failed row's token"


def test_barred_tokens_are_never_drawn():
    logits = torch.full((1, 9000), -math.inf)
    logits[0, [3, 8999]] = torch.tensor([0.0, -20.0])
    for filters in ({}, {"top_k": 50}, {"top_p": 0.999, "top_k": 3}, {"min_p": 0.5}):
        tokens, _ = drawn(logits.repeat(5, 1), [PLAIN | filters | {"seed": s} for s in range(5)])
        assert set(tokens.tolist()) == {3}
