"""No text of a user contains a control token once guarded, and guarding loses nothing."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.runtime.text.control import UNGUARD, ControlGuard

TOKENS = ["<|im_end|>", "<|im_start|>", "<|im", "|im_end|>", "[[", "aab"]
PARTS = st.sampled_from(
    [*TOKENS, "<", "<|", "|", "im_end", "aa", "b", "[", " ", "\ufdd0", "\ufdd1", "\ufdd2", "é"]
)
TEXTS = st.lists(PARTS, max_size=12).map("".join)
GUARD = ControlGuard(TOKENS)


def unguard(text: str) -> str:
    for pattern, content in UNGUARD:
        text = text.replace(pattern, content)
    return text


@settings(max_examples=500)
@given(st.lists(TEXTS, max_size=4))
def test_guarded_texts_hold_no_control_token_even_side_by_side(texts):
    joined = "".join(GUARD.guard(text) for text in texts)
    assert not [token for token in TOKENS if token in joined]
    assert unguard(joined) == "".join(texts)


def test_ordinary_text_is_left_alone():
    assert GUARD.guard("if a < b | c: x[0]") == "if a < b | c: x[0]"


def test_a_model_without_control_tokens_needs_no_marks():
    assert ControlGuard([]).guard("<|im_end|>") == "<|im_end|>"


def test_a_text_full_of_beginnings_is_guarded_in_linear_time():
    many = ControlGuard([f"<|reserved_special_token_{index}|>" for index in range(1000)])
    text = "<|reserved_special_token_" * 40_000  # a million characters
    start = time.perf_counter()
    assert many.guard(text).count("\ufdd1") == 1  # the beginning at the very end
    assert time.perf_counter() - start < 2
