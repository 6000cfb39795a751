"""Conversations whose turns are remembered are encoded as if each were new."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.runtime.text.codec import TextCodec
from engine.runtime.text.turns import Turns
from tests.text.small_models import CONTROL_TOKENS

SPECIAL = dict(enumerate(CONTROL_TOKENS))
WORDS = st.sampled_from([*CONTROL_TOKENS, "<|", "end|>", "|>", "hel", "he", "é", " ", "\n"])
TEXTS = st.lists(WORDS, max_size=8).map("".join)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


class Counting:
    """The tokenizer, and the texts that it was given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.texts: list[str] = []

    def __call__(self, text: str) -> list[int]:
        self.texts.append(text)
        return self._tokenizer.encode(text, add_special_tokens=False).ids


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(TEXTS, st.sampled_from("ab")), max_size=12), st.sampled_from([0, 9000]))
def test_nothing_remembered_changes_a_token(tokenizer, conversations, most_bytes):
    turns = Turns(SPECIAL, Counting(tokenizer), most_bytes)
    for text, owner in conversations * 2:
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        assert turns.encode(text, owner).tolist() == expected
    assert turns.remembered <= most_bytes


def test_only_new_turns_are_encoded(tokenizer):
    encode = Counting(tokenizer)
    turns = Turns(SPECIAL, encode)
    history = "rules<|turn|>user:hello<|end|><|turn|>assistant:he<|end|>"
    turns.encode(history, "gold")
    turns.encode(f"{history}<|turn|>user:help", "gold")
    turns.encode(f"{history}<|turn|>user:help", "gold")
    assert encode.texts == [history, "<|turn|>user:help"]


def test_nobody_is_answered_sooner_for_what_another_said(tokenizer):
    encode = Counting(tokenizer)
    turns = Turns(SPECIAL, encode)
    for owner in ("gold", "bronze"):
        turns.encode("<|turn|>user:hello", owner)
    assert encode.texts == ["<|turn|>user:hello"] * 2


def test_the_least_lately_used_turns_are_forgotten(tokenizer):
    encode = Counting(tokenizer)
    turns = Turns(SPECIAL, encode, most_bytes=32 * 1024)
    texts = [f"<|turn|>{number:4}" + "x" * 150 for number in range(40)]
    for text in texts:
        turns.encode(texts[0], "a")
        turns.encode(text, "a")
    assert encode.texts == texts  # the first was in use all the time
    turns.encode(texts[-1], "a")
    turns.encode(texts[1], "a")
    assert encode.texts == [*texts, texts[1]]


def test_one_long_turn_does_not_displace_all_others(tokenizer):
    encode = Counting(tokenizer)
    turns = Turns(SPECIAL, encode, most_bytes=32 * 1024)
    turns.encode("<|turn|>hello", "a")
    turns.encode("<|turn|>" + "x" * 32 * 1024, "a")
    turns.encode("<|turn|>hello", "a")
    assert len(encode.texts) == 2


def test_a_special_token_that_looks_back_is_no_place_to_cut(folder, tmp_path):
    """`lstrip` takes away the spaces before a token, which belong to the turn before."""
    for each in folder.glob("*.json"):
        (tmp_path / each.name).write_bytes(each.read_bytes())
    description = json.loads((tmp_path / "tokenizer.json").read_text())
    for entry in description["added_tokens"]:
        entry["lstrip"] = entry["special"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    codec = TextCodec.load(tmp_path)
    for content in ("hel ", "hel", "hel "):
        tokens = codec.encode_chat([{"role": "user", "content": content}], "a")
        assert b"".join(map(codec.token_bytes, tokens)) == b"user:helassistant:"
