"""What is told about a cache that rounds: of a tiny model, and of made-up predictions."""

import math

import numpy as np
import pytest
import torch

from engine.runtime.kv_error import WINDOW, difference, log_odds, windows
from tests.runtime.driver import tiny_model

TOKENS = np.random.default_rng(0).integers(0, 97, 50).astype(np.int32)


def test_an_8_bit_cache_changes_predictions_a_little_and_a_coarser_one_more():
    model = tiny_model()
    exact = log_odds(model, TOKENS, None)
    fine, coarse = (
        difference(exact, log_odds(model, TOKENS, form), TOKENS)
        for form in (torch.float8_e4m3fn, torch.float8_e5m2)
    )
    assert 0 < fine.logit < coarse.logit < 0.2
    assert 0 < fine.divergence < coarse.divergence
    same = difference(exact, exact, TOKENS)
    assert (same.logit, same.divergence, same.same, same.loss) == (0, 0, 1, 0)


def test_differences_are_counted_by_hand():
    """Two positions of two tokens: even odds, and then 3 to 1 for token 1, which follows."""
    tokens = np.array([0, 1], np.int32)
    exact = torch.zeros(2, 2)
    found = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])
    told = difference(exact + torch.tensor([0.0, 1e-6]), found, tokens)
    assert told.loss == pytest.approx(math.log(1 / 2) - math.log(3 / 4), abs=1e-5)
    kl = (0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)) / 2
    assert told.divergence == pytest.approx(kl, abs=1e-5)
    assert told.same == 0.5


def test_a_text_is_cut_into_whole_windows():
    pieces = list(windows(list(range(2 * WINDOW + 5))))
    assert [len(piece) for piece in pieces] == [WINDOW, WINDOW]
    assert pieces[1][0] == WINDOW
    assert list(windows([1] * (WINDOW - 1))) == []
