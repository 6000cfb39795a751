"""The executor on a tiny random model, driven by hand-made plans."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.core.plan import Sampling, Transfer
from engine.runtime.executor import TorchExecutor
from tests.runtime.driver import (
    GREEDY,
    TINY,
    Row,
    generate,
    join,
    plan,
    run,
    tiny_config,
    tiny_model,
)
from tests.runtime.test_sampler import Broken

MODEL = tiny_model()
CONFIG = tiny_config()
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, TINY.vocab_size, n).tolist() for n in (5, 16, 33, 1, 64, 47)]


def executor(**options):
    return TorchExecutor(MODEL, replace(CONFIG, **options))


def texts(prompts, **options):
    made = executor()
    # nothing may depend on what the pool holds at first
    made.cache.blocks.fill_(math.nan)
    return [text.output for text in generate(made, CONFIG, prompts, **options)]


def test_greedy_output_is_the_same_alone_batched_and_chunked():
    alone = [texts([prompt], new_tokens=40)[0] for prompt in PROMPTS]
    assert len({tuple(output) for output in alone}) == len(PROMPTS)
    for chunk in (1, 7, 16, 17, 50):
        assert texts(PROMPTS, new_tokens=40, chunk=chunk, seed=chunk) == alone


def test_seeded_output_is_the_same_alone_and_batched():
    samplings = [Sampling(temperature=0.8 + 0.1 * i, seed=i, top_p=0.9) for i in range(6)]
    alone = [
        texts([prompt], new_tokens=30, sampling=[sampling])[0]
        for prompt, sampling in zip(PROMPTS, samplings, strict=True)
    ]
    assert texts(PROMPTS, new_tokens=30, sampling=samplings, chunk=9) == alone
    reseeded = [replace(sampling, seed=sampling.seed + 1) for sampling in samplings]
    assert texts(PROMPTS, new_tokens=30, sampling=reseeded) != alone


def test_a_resumed_sequence_continues_where_it_stopped():
    whole = texts([PROMPTS[2]], new_tokens=20, sampling=Sampling(seed=9))[0]
    made = executor()
    tokens = PROMPTS[2] + whole[:12]
    resumed = join(3, tokens, [7, 9, 1], Sampling(seed=9), prompt=len(PROMPTS[2]))
    result = run(made, plan([Row(3, 0, len(tokens))], joined=(resumed,)))
    assert result.tokens.tolist() == [whole[12]]


def test_logprobs_of_generated_tokens():
    sampling = Sampling(temperature=0.0, logprobs=3)
    text = generate(executor(), CONFIG, [PROMPTS[0]], new_tokens=5, sampling=sampling)[0]
    assert len(text.logprobs) == 5
    for token, logprob in zip(text.output, text.logprobs, strict=True):
        assert logprob.top[0] == (token, pytest.approx(logprob.logprob))
        values = [value for _, value in logprob.top]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)


def test_rows_that_do_not_sample_draw_nothing():
    result = run(
        executor(),
        plan(
            [Row(0, 0, 10, samples=False), Row(1, 0, 5)],
            step=41,
            joined=(join(0, PROMPTS[2], [0, 1, 2]), join(1, PROMPTS[0], [3])),
        ),
    )
    assert result.step == 41
    assert result.token_counts.tolist() == [0, 1]
    assert len(result.tokens) == 1
    assert result.duration > 0


def test_forked_choices_draw_from_their_siblings_logits_and_go_on_alone():
    """n = 3: one prompt computed once; the partial block is copied for each further choice."""
    prompt = PROMPTS[4][:20]
    samplings = [Sampling(temperature=1.2, seed=seed) for seed in (1, 2, 3)]
    expected = [texts([prompt], new_tokens=6, sampling=[s])[0] for s in samplings]
    made = executor()
    tables = [[10, 20], [10, 21], [10, 22]]
    joins = tuple(join(i, prompt, tables[i], samplings[i]) for i in range(3))
    rows = [Row(0, 0, 20), Row(1, 20, 0, logits=0), Row(2, 20, 0, logits=0)]
    first = run(made, plan(rows, joined=joins, copies=((20, 21), (20, 22))))
    assert first.token_counts.tolist() == [1, 1, 1]
    outputs = [[token] for token in first.tokens.tolist()]
    for step in range(5):
        rows = [Row(slot, 20 + step, 1) for slot in range(3)]
        for output, token in zip(outputs, run(made, plan(rows)).tokens.tolist(), strict=True):
            output.append(token)
    assert outputs == expected
    assert len({tuple(output) for output in outputs}) == 3


def test_blocks_swapped_out_and_in_again_keep_their_contents():
    prompt = PROMPTS[2]
    whole = texts([prompt], new_tokens=3)[0]
    made = executor(host_blocks=3)
    run(made, plan([Row(0, 0, 33)], joined=(join(0, prompt, [5, 6, 7]),)))
    out = tuple(Transfer(block, host, True) for host, block in enumerate((5, 6, 7)))
    run(made, plan([], left=(0,), transfers=out))
    made.cache.blocks.fill_(math.nan)
    back = tuple(Transfer(block, host, False) for host, block in enumerate((40, 41, 42)))
    again = join(1, [*prompt, whole[0]], [40, 41, 42], prompt=33)
    result = run(made, plan([Row(1, 33, 1)], joined=(again,), transfers=back))
    assert result.tokens.tolist() == [whole[1]]


def test_a_transfer_outside_the_host_pool_is_refused():
    with pytest.raises(ValueError, match="host block 3 is outside the pool of 3"):
        run(executor(host_blocks=3), plan([], transfers=(Transfer(0, 3, True),)))


def test_nan_in_one_sequence_fails_it_alone_and_leaves_nothing_behind():
    made = executor()
    joins = (join(0, PROMPTS[2], [0, 1, 2]), join(1, PROMPTS[2], [3, 4, 5]))
    healthy = run(made, plan([Row(0, 0, 33), Row(1, 0, 33)], joined=joins)).tokens[1]
    made.cache.blocks[:, 0] = math.nan
    result = run(made, plan([Row(0, 33, 1), Row(1, 33, 1)]))
    assert result.token_counts.tolist() == [0, 1]
    assert list(result.failures) == [0]
    assert result.failures[0].numerical
    expected = texts([PROMPTS[2]], new_tokens=2)[0]
    assert [int(healthy), *result.tokens.tolist()] == expected
    # another sequence takes over the spoilt blocks
    after = run(made, plan([Row(0, 0, 5)], left=(0,), joined=(join(0, PROMPTS[0], [0]),)))
    assert after.tokens.tolist() == texts([PROMPTS[0]], new_tokens=1)[0]
    assert not after.failures


def test_a_failing_constraint_fails_its_row_alone():
    joins = (join(0, PROMPTS[0], [0], Sampling(constraint=Broken())), join(1, PROMPTS[0], [1]))
    result = run(executor(), plan([Row(0, 0, 5), Row(1, 0, 5)], joined=joins))
    assert result.token_counts.tolist() == [0, 1]
    assert not result.failures[0].numerical
    assert result.tokens.tolist() == texts([PROMPTS[0]], new_tokens=1)[0]


@pytest.mark.parametrize(
    ("tokens", "sampling", "detail"),
    [
        ([1, TINY.vocab_size, 2], GREEDY, "prompt token id 97 is outside the vocabulary of 97"),
        ([1, -4, 2], GREEDY, "prompt token id -4"),
        ([1, 2, 3], Sampling(logit_bias=((500, 1.0),)), "logit_bias token id 500"),
        ([1, 2, 3], Sampling(stop_token_ids=(97,), min_tokens=2), "stop token id 97"),
    ],
)
def test_ids_outside_the_vocabulary_fail_their_sequence_alone(tokens, sampling, detail):
    made = executor()
    joins = (join(0, tokens, [0], sampling), join(1, PROMPTS[0], [1]))
    rows = [Row(0, 0, 2, samples=False), Row(1, 0, 5)]
    result = run(made, plan(rows, joined=joins))
    assert result.token_counts.tolist() == [0, 1]
    assert result.failures[0].detail.startswith(detail)
    assert result.tokens.tolist() == texts([PROMPTS[0]], new_tokens=1)[0]
    fresh = run(made, plan([Row(0, 0, 5)], left=(0,), joined=(join(0, PROMPTS[0], [0]),)))
    assert not fresh.failures


def test_plans_and_results_survive_pickling():
    step_plan = plan([Row(0, 0, 5)], joined=(join(0, PROMPTS[0], [0], Sampling(logprobs=2)),))
    result = run(executor(), pickle.loads(pickle.dumps(step_plan)))
    again = pickle.loads(pickle.dumps(result))
    assert again.tokens.tolist() == result.tokens.tolist()
    assert again.logprobs == result.logprobs


def test_what_the_executor_cannot_do_is_refused_clearly():
    with pytest.raises(ValueError, match="proposes no drafts"):
        run(executor(), plan([Row(0, 0, 5, drafts=1)], joined=(join(0, PROMPTS[0], [0]),)))
    with pytest.raises(ValueError, match="max_context 512 exceeds the model's 256"):
        TorchExecutor(MODEL, tiny_config(max_context=512))
    with pytest.raises(ValueError, match="vocab_size 96 differs from the model's 97"):
        TorchExecutor(MODEL, tiny_config(vocab_size=96))
    too_long = (join(0, [1] * 257, [0]),)
    with pytest.raises(ValueError, match="sequence 0 has 257 tokens"):
        run(executor(), plan([Row(0, 0, 5)], joined=too_long))


def test_the_last_position_of_a_full_context_still_draws():
    prompt = [3] * 255
    made = executor()
    blocks = list(range(16))
    first = run(made, plan([Row(0, 0, 255)], joined=(join(0, prompt, blocks),)))
    second = run(made, plan([Row(0, 255, 1)]))
    assert first.token_counts.tolist() == second.token_counts.tolist() == [1]


def test_warming_up_changes_nothing():
    made = executor()
    made.warm_up()
    assert not made.cache.blocks.any()
    assert [t.output for t in generate(made, CONFIG, PROMPTS, new_tokens=8)] == texts(
        PROMPTS, new_tokens=8
    )


def test_nothing_of_autograd_is_recorded():
    assert not MODEL.embedding.requires_grad
    made = executor()
    run(made, plan([Row(0, 0, 5)], joined=(join(0, PROMPTS[0], [0]),)))
    assert made.cache.blocks.grad_fn is None
    assert torch.is_inference(made.cache.blocks) is False
