"""Tokenizers out of GGUF metadata agree with independent ones."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.runtime.text.codec import TextCodec
from engine.runtime.text.errors import CodecError
from engine.runtime.text.gguf_tokenizer import read_gguf
from tests.text.small_models import (
    BYTE,
    CONTROL,
    CONTROL_TOKENS,
    NORMAL,
    UNKNOWN,
    write_byte_model,
    write_gguf,
)

TEXT = "I'll pay 12345 dollars,  OK?\n\n  x_1 = 'é'\t\t!!"


def words(path, text: str) -> list[str]:
    """How the tokenizer splits a text before merging, in the letters of byte-level BPE."""
    tokenizer = Tokenizer.from_str(json.dumps(read_gguf(path).tokenizer))
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", "I |'ll|Ġpay|Ġ12345|Ġdollars|,|Ġ|ĠOK|?|ĊĊĠ|Ġx|_|1|Ġ=|Ġ'|Ã©|'|ĉ|ĉ|!!"),
        ("smollm", "I |'ll|Ġpay|Ġ|1|2|3|4|5|Ġdollars|,|Ġ|ĠOK|?|ĊĊĠ|Ġx|_|1|Ġ=|Ġ'|Ã©|'|ĉ|ĉ|!!"),
        ("llama-bpe", "I|'ll|Ġpay|Ġ|123|45|Ġdollars|,|Ġ|ĠOK|?ĊĊ|Ġ|Ġx|_|1|Ġ=|Ġ'|Ã©|'|ĉ|ĉ|!!"),
        ("qwen2", "I|'ll|Ġpay|Ġ|1|2|3|4|5|Ġdollars|,|Ġ|ĠOK|?ĊĊ|Ġ|Ġx|_|1|Ġ=|Ġ'|Ã©|'|ĉ|ĉ|!!"),
    ],
)
def test_words_of_the_pre_tokenizers(tmp_path, pre, expected):
    path = write_byte_model(tmp_path / "m.gguf", pre=pre)
    assert words(path, TEXT) == expected.replace(" ", "").split("|")


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2"])
def test_words_agree_with_the_tokenizers_of_transformers(tmp_path, pre):
    from tokenizers import pre_tokenizers
    from transformers import GPT2Tokenizer, Qwen2Tokenizer

    gpt2 = GPT2Tokenizer().backend_tokenizer.pre_tokenizer
    reference = {
        "gpt-2": gpt2,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]),
        "qwen2": Qwen2Tokenizer().backend_tokenizer.pre_tokenizer,
    }[pre]
    path = write_byte_model(tmp_path / "m.gguf", pre=pre)
    tested = Tokenizer.from_str(json.dumps(read_gguf(path).tokenizer)).pre_tokenizer

    @settings(max_examples=200, deadline=None)
    @given(st.text(st.sampled_from("aB1²é中 \t\n\r'slL_.,!😀\u3000")))
    def agree(text):
        assert tested.pre_tokenize_str(text) == reference.pre_tokenize_str(text)

    agree()


def test_only_llama3_takes_known_words_without_merging(tmp_path):
    for pre, whole in [("llama-bpe", True), ("gpt-2", False)]:
        path = write_byte_model(tmp_path / f"{pre}.gguf", pre=pre, merges=["h e"], ids={"eos": 0})
        codec = TextCodec.load(path)
        pieces = [codec.token_text(token) for token in codec.encode("hel", add_special=False)]
        assert pieces == (["hel"] if whole else ["he", "l"])


def test_qwen_composes_characters(tmp_path):
    codec = TextCodec.load(write_byte_model(tmp_path / "m.gguf", pre="qwen2"))
    assert codec.encode("e\u0301", add_special=False) == codec.encode("é", add_special=False)


def test_ids_flags_and_template(tmp_path):
    codec = TextCodec.load(
        write_byte_model(
            tmp_path / "m.gguf", flags={"add_bos_token": True}, ids={"bos": 2, "eot": 1}
        )
    )
    assert codec.encode("he", add_special=True)[0] == 2
    assert codec.encode("he", add_special=False)[0] != 2
    assert codec.eos_ids == {1}
    assert codec.context_length == 64
    assert codec.vocab_size == 4 + 256 + 2
    assert [token for token in range(codec.vocab_size) if codec.is_special(token)] == [0, 1, 2]


def test_control_tokens_known_to_end_texts_end_them(tmp_path):
    path = write_gguf(
        tmp_path / "m.gguf",
        tokens=["a", "<|im_end|>", "<|endoftext|>", "</s>", "aa"],
        kinds=[NORMAL, CONTROL, CONTROL, NORMAL, NORMAL],
        merges=["a a"],
        ids={"eos": 1},
    )
    assert read_gguf(path).eos_ids == {1, 2}


# A SentencePiece model. Scores order the merges: "▁ab" beats "bc", which beats "ab".
PIECES = {"▁ab": -1.0, "bc": -2.0, "ab": -3.0, "▁a": -4.0, "cc": -5.0, "abc": -6.0, "ccc": -7.0}
LETTERS = {"▁": -20.0, "a": -21.0, "b": -22.0, "c": -23.0}
SP_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
SP_KINDS = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * 11


def sentence_piece_model(path, **changes):
    tokens = [*SP_TOKENS, *PIECES, *LETTERS]
    scores = [0.0] * len(SP_TOKENS) + [*PIECES.values(), *LETTERS.values()]
    ids = {"unknown": 0, "bos": 1, "eos": 2}
    settings_ = {"tokens": tokens, "kinds": SP_KINDS, "kind": "llama", "scores": scores, "ids": ids}
    return write_gguf(path, **(settings_ | changes))


def sentence_piece(text: str) -> list[str]:
    """SentencePiece's algorithm, literally: join the best-scoring neighbours, leftmost first."""
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [
            (-PIECES[left + right], index)
            for index, (left, right) in enumerate(pairwise(symbols))
            if left + right in PIECES
        ]
        if not pairs:
            break
        _, index = min(pairs)
        symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]
    return [
        piece
        for symbol in symbols
        for piece in (
            [symbol]
            if symbol in PIECES or symbol in LETTERS
            else [f"<0x{byte:02X}>" for byte in symbol.encode()]
        )
    ]


def test_sentence_piece_agrees_with_its_algorithm(tmp_path):
    path = sentence_piece_model(tmp_path / "m.gguf")
    codec = TextCodec.load(path)
    ids = {text: token for token, text in enumerate([*SP_TOKENS, *PIECES, *LETTERS])}

    @settings(max_examples=300, deadline=None)
    @given(st.text(st.sampled_from("aaabbbccc é😀<"), max_size=20))
    def agree(text):
        tokens = codec.encode(text, add_special=False)
        assert tokens == [ids[piece] for piece in sentence_piece(text)]
        written = b"".join(codec.token_bytes(token) for token in tokens).decode()
        assert written == (" " + text if text else "")

    agree()
    assert codec.encode("ab", add_special=True) == [1, ids["▁ab"]]


def test_sentence_piece_without_the_leading_space(tmp_path):
    flags = {"add_space_prefix": False, "add_bos_token": False}
    codec = TextCodec.load(sentence_piece_model(tmp_path / "m.gguf", flags=flags))
    assert codec.encode("ab", add_special=True) == [codec.encode("cab", add_special=False)[-1]]


def test_sentence_piece_special_tokens_in_user_text_are_spelled_out(tmp_path):
    codec = TextCodec.load(sentence_piece_model(tmp_path / "m.gguf"))
    tokens = codec.encode("a</s>b", add_special=False)
    assert not any(codec.is_special(token) for token in tokens)
    assert b"".join(map(codec.token_bytes, tokens)) == b" a</s>b"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"pre": "poro-chat"},
            "pre-tokenizer 'poro-chat' is not known; known ones are .*llama-bpe",
        ),
        ({"kind": "t5"}, "of the kind 't5'; known kinds are gpt2 and llama"),
        ({"merges": None}, "has no tokenizer.ggml.merges"),
        ({"merges": ["h zzz"]}, "vocabulary and merges do not fit"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path, changes, message):
    path = write_byte_model(tmp_path / "m.gguf", **changes)
    with pytest.raises(CodecError, match=message):
        TextCodec.load(path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"not a model")
    with pytest.raises(CodecError, match=r"m\.gguf is not a readable GGUF file"):
        TextCodec.load(path)


def test_kinds_of_tokens(tmp_path):
    codec = TextCodec.load(write_byte_model(tmp_path / "m.gguf"))
    assert [codec.token_text(token) for token in range(4)] == [*CONTROL_TOKENS, "<think>"]
    assert [codec.token_bytes(token) for token in range(4)] == [b"", b"", b"", b"<think>"]
    assert codec.encode("<think>", add_special=False) == [3]
