import math
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from engine.core.plan import Sampling
from engine.runtime.batch_state import BatchState
from engine.runtime.draws import gumbel, noise_keys
from engine.runtime.logits import SHORT_LIST, keep_likely
from engine.runtime.sampler import collect, draw, prepare
from tests.runtime.driver import BLOCK, join, plan

VOCAB = 12
SLOTS = 64


def state_of(*rows, vocab=VOCAB):
    """A batch whose slot i holds (prompt, output, sampling) `rows[i]`."""
    state = BatchState(SLOTS, 64, BLOCK, vocab)
    joins = tuple(
        join(slot, [*prompt, *output], [0], sampling, prompt=len(prompt))
        for slot, (prompt, output, sampling) in enumerate(rows)
    )
    state.apply(plan([], joined=joins))
    return state


def draw_all(logits, *rows):
    logits = torch.tensor(logits, dtype=torch.float32)
    state = state_of(*rows, vocab=logits.shape[1])
    inputs = prepare(np.arange(len(rows), dtype=np.int32), state)
    return collect(draw(logits, inputs, lambda slots, n: known(state, slots, n)), inputs)


def known(state, slots, length):
    return torch.from_numpy(state.tokens[slots, :length].astype(np.int64))


def noise(seeds, positions, vocab):
    return gumbel(torch.from_numpy(noise_keys(seeds, positions)), vocab)


def ramp(*changes):
    """Logits 0, 0.1, 0.2, ... with (token, value) changes."""
    row = [token / 10 for token in range(VOCAB)]
    for token, value in changes:
        row[token] = value
    return row


def adjusted_choice(logits, prompt, output, **parameters):
    """The most likely token once `parameters` have acted on one row of logits."""
    sampling = Sampling(temperature=0.0, **parameters)
    return int(draw_all([logits], (prompt, output, sampling)).tokens[0])


def test_greedy_takes_the_first_of_the_largest():
    drawn = draw_all(
        [ramp((3, 9.0), (7, 9.0)), ramp()], *[([0], [], Sampling(temperature=0.0))] * 2
    )
    assert drawn.tokens.tolist() == [3, VOCAB - 1]
    assert not drawn.failures
    assert not drawn.logprobs


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    # 6 / 2 = 3 loses to 3.5; with -1 * 2 = -2 the other way about
    assert adjusted_choice(ramp((4, 6.0), (5, 3.5)), [4], [], repetition_penalty=2.0) == 5
    assert adjusted_choice(ramp((4, 6.0), (5, 2.9)), [4], [], repetition_penalty=2.0) == 4
    low = [-9.0] * VOCAB
    low[1], low[2] = -1.0, -1.9
    assert adjusted_choice(low, [0], [1], repetition_penalty=1.8) == 1
    assert adjusted_choice(low, [0], [1], repetition_penalty=2.0) == 2


def test_presence_penalty_counts_output_tokens_once_and_prompt_tokens_never():
    logits = ramp((4, 3.0), (5, 2.0))
    assert adjusted_choice(logits, [4, 4], [], presence_penalty=1.5) == 4
    assert adjusted_choice(logits, [0], [4, 4, 4], presence_penalty=0.9) == 4
    assert adjusted_choice(logits, [0], [4, 4, 4], presence_penalty=1.1) == 5


def test_frequency_penalty_counts_every_output_token():
    logits = ramp((4, 3.0), (5, 2.0))
    assert adjusted_choice(logits, [4] * 9, [4], frequency_penalty=0.9) == 4
    assert adjusted_choice(logits, [0], [4], frequency_penalty=1.1) == 5
    assert adjusted_choice(logits, [0], [4, 1, 4], frequency_penalty=0.51) == 5
    assert adjusted_choice(logits, [0], [4, 1, 4], frequency_penalty=0.49) == 4


def test_penalties_leave_neighbours_alone():
    greedy = Sampling(temperature=0.0)
    row = ramp((4, 3.0), (5, 2.0))
    penalised = Sampling(temperature=0.0, presence_penalty=2.0)
    drawn = draw_all([row] * 3, ([4], [4], greedy), ([0], [4], penalised), ([4], [4], greedy))
    assert drawn.tokens.tolist() == [4, 5, 4]


def test_logit_bias_is_added():
    assert adjusted_choice(ramp(), [0], [], logit_bias=((2, 0.85),)) == VOCAB - 1
    assert adjusted_choice(ramp(), [0], [], logit_bias=((2, 0.85), (VOCAB - 1, -1.0))) == 2
    assert adjusted_choice(ramp(), [0], [], logit_bias=((2, 100.0),)) == 2


def test_stop_tokens_wait_for_min_tokens():
    stops = {"min_tokens": 2, "stop_token_ids": (11, 10)}
    assert adjusted_choice(ramp(), [0], [], **stops) == 9
    assert adjusted_choice(ramp(), [0], [9], **stops) == 9
    assert adjusted_choice(ramp(), [0], [9, 9], **stops) == 11


@dataclass(frozen=True)
class Only:
    """Allows a fixed set of tokens."""

    tokens: tuple[int, ...]

    def allowed(self, output):
        return self.tokens


class EvenAfterOdd:
    def allowed(self, output):
        return [4, 6] if output[-1] % 2 else [3, 5]


class Broken:
    def allowed(self, output):
        raise RuntimeError(f"no rule after {output}")


def test_a_constraint_sees_the_output_and_restricts_the_choice():
    assert adjusted_choice(ramp(), [1, 2], [8, 7], constraint=EvenAfterOdd()) == 6
    assert adjusted_choice(ramp(), [1, 7], [8], constraint=EvenAfterOdd()) == 5
    hot = Sampling(temperature=5.0, constraint=Only((2, 3)))
    rows = [
        ([0], [], Sampling(temperature=5.0, seed=s, constraint=Only((2, 3)))) for s in range(50)
    ]
    assert set(draw_all([ramp()] * 50, *rows).tokens.tolist()) == {2, 3}
    assert draw_all([ramp()], ([0], [], hot)).tokens[0] in (2, 3)


@pytest.mark.parametrize(
    ("constraint", "detail"),
    [
        (Broken(), r"constraint raised RuntimeError: no rule after \[5\]"),
        (Only((VOCAB,)), "constraint raised IndexError"),
        (Only(()), "no token is allowed"),
    ],
)
def test_a_bad_constraint_fails_its_row_alone(constraint, detail):
    plain = ([0], [5], Sampling(temperature=0.0))
    drawn = draw_all([ramp()] * 3, plain, ([0], [5], Sampling(constraint=constraint)), plain)
    assert list(drawn.failures) == [1]
    assert not drawn.failures[1].numerical
    assert re.match(detail, drawn.failures[1].detail)
    assert drawn.tokens[[0, 2]].tolist() == [VOCAB - 1] * 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(top_p=0.5, logprobs=2)])
def test_bad_logits_fail_their_row_alone(bad, sampling):
    rows = [ramp(), ramp((2, bad)), ramp()]
    drawn = draw_all(rows, *[([0], [], sampling)] * 3)
    clean = draw_all([ramp()] * 3, *[([0], [], sampling)] * 3)
    assert list(drawn.failures) == [1]
    assert drawn.failures[1].numerical
    assert drawn.tokens[[0, 2]].tolist() == clean.tokens[[0, 2]].tolist()


def kept(logits, top_k=0, top_p=1.0, min_p=0.0):
    """Ids that the filters leave, from logits of one row."""
    scores = torch.tensor([logits], dtype=torch.float32)
    parameters = (np.array([top_k]), np.array([top_p], np.float32), np.array([min_p], np.float32))
    keep_likely(scores, *parameters)
    return torch.nonzero(scores[0] > -math.inf).squeeze(1).tolist()


SHARES = [0.04, 0.5, 0.01, 0.25, 0.2]
LOGS = [math.log(share) for share in SHARES]


def test_filters_keep_what_they_promise():
    assert kept(LOGS) == [0, 1, 2, 3, 4]
    assert kept(LOGS, top_k=1) == [1]
    assert kept(LOGS, top_k=3) == [1, 3, 4]
    assert kept(LOGS, top_k=99) == [0, 1, 2, 3, 4]
    assert kept(LOGS, top_p=0.49) == [1]
    assert kept(LOGS, top_p=0.51) == [1, 3]
    assert kept(LOGS, top_p=0.96) == [0, 1, 3, 4]
    assert kept(LOGS, top_p=0.0) == [1]
    assert kept(LOGS, min_p=0.41) == [1, 3]
    assert kept(LOGS, min_p=0.39) == [1, 3, 4]
    # of the best two, 0.5 / 0.75 is two thirds
    assert kept(LOGS, top_k=2, top_p=0.66) == [1]
    assert kept(LOGS, top_k=2, top_p=0.67) == [1, 3]
    assert kept(LOGS, top_k=3, min_p=0.45) == [1, 3]


def test_a_flat_distribution_is_ranked_beyond_the_short_list():
    vocab = SHORT_LIST * 20
    flat = torch.linspace(0, 0.5, vocab)
    exact = flat.double().softmax(-1).flip(0).cumsum(0)
    need = int((exact < 0.9).sum()) + 1
    few = int((exact < 0.3).sum()) + 1
    assert SHORT_LIST < few < SHORT_LIST * 16 < need
    assert kept(flat.tolist(), top_p=0.9) == list(range(vocab - need, vocab))
    assert kept(flat.tolist(), top_k=700) == list(range(vocab - 700, vocab))
    assert kept(flat.tolist(), top_p=0.3) == list(range(vocab - few, vocab))


def test_filters_agree_with_transformers():
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(20, 3000, generator=generator) * 3
    for top_k, top_p, min_p in [(50, 1.0, 0.0), (0, 0.9, 0.0), (40, 0.8, 0.05), (0, 0.999, 0.001)]:
        expected = scores
        for warper in (
            TopKLogitsWarper(top_k) if top_k else None,
            TopPLogitsWarper(top_p) if top_p < 1 else None,
            MinPLogitsWarper(min_p) if min_p else None,
        ):
            expected = expected if warper is None else warper(None, expected)
        actual = scores.clone()
        keep_likely(actual, np.full(20, top_k), np.full(20, top_p, np.float32), np.full(20, min_p))
        assert torch.equal(actual > -math.inf, expected > -math.inf)


def test_draws_follow_the_distribution():
    """Pearson's chi-square of 60,000 seeded draws: 4 degrees of freedom, so 23.5 is p = 0.0001."""
    counts = np.zeros(5)
    rows, per_row = 60, 1000
    scores = torch.tensor(LOGS)
    for index in range(per_row):
        seeds, positions = np.arange(rows, dtype=np.uint64), np.full(rows, index, np.int32)
        drawn = scores + noise(seeds, positions, len(LOGS))
        counts += np.bincount(drawn.argmax(-1).numpy(), minlength=5)
    expected = np.array(SHARES) * rows * per_row
    assert ((counts - expected) ** 2 / expected).sum() < 23.5


def test_consecutive_draws_of_one_seed_are_independent():
    """The same bound for pairs of successive tokens of one sequence (24 degrees: 58.6)."""
    draws = np.arange(40_001, dtype=np.int32)
    seeds = np.full(len(draws), 1234, np.uint64)
    scores = torch.tensor(LOGS)
    tokens = (scores + noise(seeds, draws, len(LOGS))).argmax(-1).numpy()
    pairs = np.bincount(tokens[:-1] * 5 + tokens[1:], minlength=25)
    expected = np.outer(SHARES, SHARES).ravel() * (len(draws) - 1)
    assert ((pairs - expected) ** 2 / expected).sum() < 58.6


def test_noise_is_standard_gumbel_over_a_real_vocabulary():
    made = noise(np.array([5], np.uint64), np.array([3], np.int32), 49152).double()
    assert made.isfinite().all()
    assert made.mean().item() == pytest.approx(0.5772, abs=0.03)
    assert made.var().item() == pytest.approx(math.pi**2 / 6, rel=0.04)
    assert made.unique().numel() > 49_000


def test_temperature_sharpens_and_flattens():
    def share_of_best(temperature):
        rows = [([0], [], Sampling(temperature=temperature, seed=s)) for s in range(60)]
        tokens = draw_all([[*LOGS, -9.0]] * 60, *rows).tokens
        return (tokens == 1).mean()

    assert share_of_best(1e-9) == 1.0
    assert share_of_best(0.2) > 0.9
    assert 0.3 < share_of_best(1.0) < 0.7
    assert share_of_best(50.0) < 0.35


def test_a_seeded_draw_depends_on_seed_and_position_alone():
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)).tolist()
    target = ([1, 2], [3, 4, 5], Sampling(seed=77))
    alone = draw_all([logits], target).tokens[0]
    other = ([9], [], Sampling(seed=5, top_k=2, frequency_penalty=1.0))
    for position in range(4):
        rows = [other] * 4
        rows[position] = target
        scores = [ramp()] * 4
        scores[position] = logits
        assert draw_all(scores, *rows).tokens[position] == alone
    # the same number of output tokens after another prompt draws the same noise
    assert draw_all([logits], ([7], [8, 8, 8], Sampling(seed=77))).tokens[0] == alone
    more = [draw_all([logits], ([1], [3] * n, Sampling(seed=77))).tokens[0] for n in range(30)]
    assert len(set(more)) > 2
    others = [draw_all([logits], ([1], [], Sampling(seed=s))).tokens[0] for s in range(-15, 15)]
    assert len(set(others)) > 2


def test_rounding_differences_rarely_change_a_draw():
    """Logits that differ as two batch shapes make them differ (1e-5) draw the same token."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 20_000, generator=generator) * 2
    nudged = logits + 1e-5 * torch.randn(logits.shape, generator=generator)
    added = noise(np.arange(200, dtype=np.uint64), np.zeros(200, np.int32), 20_000)
    same = (logits + added).argmax(-1) == (nudged + added).argmax(-1)
    assert same.all()


def test_logprobs_are_those_of_the_raw_logits():
    row = [*LOGS, -50.0]
    hot = Sampling(temperature=0.0, logprobs=2, logit_bias=((3, 100.0),), presence_penalty=1.0)
    own_only = Sampling(temperature=0.0, logprobs=0)
    none = Sampling(temperature=0.0)
    drawn = draw_all([row] * 3, ([0], [1], hot), ([0], [], own_only), ([0], [], none))
    assert drawn.tokens.tolist() == [3, 1, 1]
    assert drawn.logprobs[0].logprob == pytest.approx(math.log(0.25), abs=1e-5)
    assert [token for token, _ in drawn.logprobs[0].top] == [1, 3]
    assert [value for _, value in drawn.logprobs[0].top] == pytest.approx(
        [math.log(0.5), math.log(0.25)], abs=1e-5
    )
    assert drawn.logprobs[1].logprob == pytest.approx(math.log(0.5), abs=1e-5)
    assert drawn.logprobs[1].top == ()
    assert set(drawn.logprobs) == {0, 1}
