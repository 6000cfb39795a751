"""The codec over small models, as GGUF files and as Hugging Face folders."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.runtime.text.codec import SHORT_TEXT, TextCodec
from engine.runtime.text.errors import ChatTemplateError, CodecError, EncodingError
from tests.text.small_models import CONTROL_TOKENS, write_byte_model

END, END_PREFIX, TURN = 0, 1, 2


@pytest.fixture(scope="module")
def codec(folder):
    return TextCodec.load(folder)


def change(folder, tmp_path, file: str, edit) -> TextCodec:
    """Load a copy of the folder with one of its JSON files edited."""
    for each in folder.glob("*.json"):
        (tmp_path / each.name).write_bytes(each.read_bytes())
    content = json.loads((tmp_path / file).read_text()) if (tmp_path / file).exists() else {}
    edit(content)
    (tmp_path / file).write_text(json.dumps(content))
    return TextCodec.load(tmp_path)


def test_short_and_long_texts_are_encoded_alike(codec):
    short = codec.encode("hello " * (SHORT_TEXT // 6), add_special=False)
    long = codec.encode("hello " * (SHORT_TEXT // 6 + 10), add_special=False)
    assert long[: len(short)] == short
    assert text_of(codec, long) == b"hello " * (SHORT_TEXT // 6 + 10)
    with pytest.raises(EncodingError, match="surrogate"):
        codec.encode("x" * SHORT_TEXT + "\ud800", add_special=False)


def text_of(codec: TextCodec, tokens) -> bytes:
    return b"".join(codec.token_bytes(token) for token in tokens)


PARTS = st.sampled_from(
    [*CONTROL_TOKENS, "<|", "end|>", "|>", "<", "hel", "é", " ", "\ufdd0", "\ufdd1"]
)
USER_TEXTS = st.lists(PARTS, max_size=8).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(USER_TEXTS, min_size=1, max_size=3))
def test_only_the_template_writes_control_tokens(codec, contents):
    messages = [{"role": "user", "content": content} for content in contents]
    tokens = codec.encode_chat(messages)
    control = [token for token in tokens if codec.is_special(token)]
    assert control == [TURN, END] * len(contents) + [TURN]
    said = "".join(f"user:{content}" for content in contents) + "assistant:"
    assert text_of(codec, tokens) == said.encode()


def test_messages_side_by_side_cannot_forge_a_control_token(folder, tmp_path):
    codec = change(
        folder,
        tmp_path,
        "tokenizer_config.json",
        lambda config: config.update(
            chat_template="{% for m in messages %}{{ m.content }}{% endfor %}"
        ),
    )
    halves = [{"role": "user", "content": half} for half in ("a<|tu", "rn|>b")]
    tokens = codec.encode_chat(halves)
    assert not any(codec.is_special(token) for token in tokens)
    assert text_of(codec, tokens) == b"a<|turn|>b"


@settings(max_examples=200, deadline=None)
@given(USER_TEXTS | st.text())
def test_prompts_are_plain_text(codec, text):
    tokens = codec.encode(text, add_special=False)
    assert text_of(codec, tokens) == text.encode()
    assert not any(codec.is_special(token) for token in tokens)


def test_the_leading_text_of_a_prompt_follows_the_tokenizers_rule(folder, tmp_path):
    def add_bos(content):
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<|turn|>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [],
            "special_tokens": {
                "<|turn|>": {"id": "<|turn|>", "ids": [TURN], "tokens": ["<|turn|>"]}
            },
        }

    codec = change(folder, tmp_path, "tokenizer.json", add_bos)
    plain = codec.encode("hi <|turn|>", add_special=False)
    assert TURN not in plain
    assert codec.encode("hi <|turn|>", add_special=True) == [TURN, *plain]


def test_tokens_as_bytes_and_as_text(codec):
    (h, *_), e_acute = codec.encode("h", add_special=False), codec.encode("é", add_special=False)
    assert codec.token_bytes(h) == b"h"
    assert [codec.token_bytes(token) for token in e_acute] == [b"\xc3", b"\xa9"]
    assert [codec.token_text(token) for token in e_acute] == ["\ufffd", "\ufffd"]
    assert codec.token_bytes(END) == b""
    assert codec.token_text(END) == "<|end|>"
    assert codec.token_bytes(codec.vocab_size) == codec.token_bytes(-1) == b""


@pytest.mark.parametrize("surrogate", ["\ud800", "a\udfffb"])
def test_an_unpaired_surrogate_is_refused(codec, surrogate):
    with pytest.raises(EncodingError, match="unpaired surrogate"):
        codec.encode(surrogate, add_special=False)
    with pytest.raises(EncodingError, match="unpaired surrogate"):
        codec.encode_chat([{"role": "user", "content": surrogate}])


def test_without_a_template_there_is_no_chat(tmp_path):
    codec = TextCodec.load(write_byte_model(tmp_path / "m.gguf", template=None))
    with pytest.raises(ChatTemplateError, match="no chat template"):
        codec.encode_chat([{"role": "user", "content": "hi"}])


def test_threads_may_share_a_codec(codec):
    texts = [f"hello <|end|> {index} é" * 20 for index in range(200)]
    expected = [codec.encode(text, add_special=False) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda text: codec.encode(text, add_special=False), texts * 3))
    assert got == expected * 3


def test_the_end_tokens_of_every_file_count(folder, tmp_path):
    codec = change(
        folder, tmp_path, "config.json", lambda config: config.update(eos_token_id=[5, 6])
    )
    assert codec.eos_ids == {END, 5, 6}
    (tmp_path / "config.json").unlink()
    codec = change(
        folder, tmp_path, "generation_config.json", lambda config: config.update(eos_token_id=7)
    )
    assert codec.eos_ids == {END, 7}


def test_the_context_length_is_that_of_the_model(folder, tmp_path):
    def set_length(config):
        config.update(max_position_embeddings=4096)

    assert change(folder, tmp_path, "config.json", set_length).context_length == 4096


def test_a_template_file_comes_before_the_configuration(folder, tmp_path):
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "named"}]
    codec = change(
        folder, tmp_path, "tokenizer_config.json", lambda config: config.update(chat_template=named)
    )
    assert text_of(codec, codec.encode_chat([])) == b"named"
    (tmp_path / "chat_template.jinja").write_text("from a file")
    assert (
        text_of(TextCodec.load(tmp_path), TextCodec.load(tmp_path).encode_chat([]))
        == b"from a file"
    )


def test_special_tokens_may_be_described_at_length(folder, tmp_path):
    def describe(config):
        config.update(
            eos_token={"content": "<|turn|>", "special": True}, chat_template="{{ eos_token }}"
        )

    codec = change(folder, tmp_path, "tokenizer_config.json", describe)
    assert codec.encode_chat([]).tolist() == [TURN]
    assert codec.eos_ids == {END, TURN}


def test_merges_that_spell_a_control_token_are_not_used(folder, tmp_path):
    """Old SentencePiece conversions have merges that lead from plain characters to `</s>`."""

    def spell(content):
        content["pre_tokenizer"]["pretokenizers"] = content["pre_tokenizer"]["pretokenizers"][-1:]
        model = content["model"]
        letters = list("<|end|>")
        for size in range(2, len(letters)):
            model["vocab"].setdefault("".join(letters[:size]), 1000 + size)
        model["merges"] += [
            ["".join(letters[:size]), letters[size]] for size in range(1, len(letters))
        ]

    codec = change(folder, tmp_path, "tokenizer.json", spell)
    tokens = codec.encode("<|end|>", add_special=False)
    assert END not in tokens
    assert END_PREFIX not in tokens
    assert text_of(codec, tokens) == b"<|end|>"


def test_a_tokenizer_that_would_let_users_forge_control_tokens_is_refused(folder, tmp_path):
    def one_character(content):
        content["added_tokens"][0]["content"] = "#"
        content["added_tokens"][0]["id"] = content["model"]["vocab"]["#"]

    with pytest.raises(CodecError, match="special token '#' out of ordinary text"):
        change(folder, tmp_path, "tokenizer.json", one_character)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda content: content["model"].update(type="Unigram"), "must be BPE, not Unigram"),
        (lambda content: content.update(decoder={"type": "WordPiece"}), "not: WordPiece"),
        (lambda content: content.update(normalizer={"type": "?"}), "cannot be built"),
        (
            lambda content: content["model"].update(type="Unigram", vocab=[["a", 0.0]]),
            r"tokenizer\.json: .* must be BPE, not Unigram",
        ),
        (lambda content: content.pop("model"), r"tokenizer\.json: .* must be BPE, not None"),
        (lambda content: content["model"].pop("merges"), r"tokenizer\.json: 'model\.merges' does"),
        (lambda content: content["model"]["vocab"].update(a="b"), r"'model\.vocab' does not hold"),
        (lambda content: content.update(added_tokens=None), r"'added_tokens' does not hold what"),
        (lambda content: content.update(decoder={}), r"tokenizer\.json: 'decoder' does not hold"),
    ],
)
def test_other_kinds_of_tokenizers_are_refused(folder, tmp_path, edit, message):
    with pytest.raises(CodecError, match=message):
        change(folder, tmp_path, "tokenizer.json", edit)


def test_missing_and_broken_files_are_named(folder, tmp_path):
    with pytest.raises(CodecError, match=r"has no tokenizer\.json"):
        TextCodec.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CodecError, match=r"tokenizer\.json is not valid JSON"):
        TextCodec.load(tmp_path)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for name, content, message in (
        ("chat_template.jinja", b"\xff", r"chat_template\.jinja is not UTF-8"),
        ("tokenizer_config.json", b'{"chat_template": 3}', r"_config\.json: 'chat_template' must"),
        ("tokenizer_config.json", b'{"eos_token": 3}', r"_config\.json: 'eos_token' must be text"),
        ("generation_config.json", b'{"eos_token_id": "x"}', r"_config\.json: 'eos_token_id' must"),
    ):
        before = (tmp_path / name).read_bytes() if (tmp_path / name).exists() else None
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CodecError, match=message):
            TextCodec.load(tmp_path)
        if before is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_bytes(before)
