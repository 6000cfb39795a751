"""Reads the tokenizer in the metadata of a GGUF file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, processors
from tokenizers import pre_tokenizers as splitters
from tokenizers.models import BPE

from engine.runtime.gguf_file import GgufError, GgufFile
from engine.runtime.text.errors import CodecError
from engine.runtime.text.pre_tokenizers import PRE_TOKENIZERS
from engine.runtime.text.source import TokenizerSource

# Kinds of tokens, `gguf.TokenType`
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_SPECIAL_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
# Control tokens that end a text or a turn in every model that has them. Files name only one as eos.
_ENDS = {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "</s>"}


def read_gguf(path: Path) -> TokenizerSource:
    """Read the tokenizer, chat template and context length from a GGUF file. Raises CodecError."""
    fields = _Metadata(path)
    kind = fields.require("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(fields)
    elif kind == "llama":
        tokenizer = _sentence_piece(fields)
    else:
        raise CodecError(
            f"{path.name} has a tokenizer of the kind '{kind}'; known kinds are gpt2 and llama"
        )
    tokens = fields.tokens
    ends = {fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")}
    return TokenizerSource(
        tokenizer=json.loads(tokenizer.to_str()),
        chat_template=fields.get("tokenizer.chat_template"),
        special_tokens={
            name: tokens[token]
            for name, key in _SPECIAL_IDS.items()
            if (token := fields.get(f"tokenizer.ggml.{key}")) is not None and token < len(tokens)
        },
        eos_ids=frozenset(
            token
            for token, text in enumerate(tokens)
            if token in ends or (text in _ENDS and fields.kinds[token] == _CONTROL)
        ),
        context_length=fields.get(f"{fields.require('general.architecture')}.context_length"),
    )


class _Metadata:
    def __init__(self, path: Path) -> None:
        try:
            self._file = GgufFile(path)
        except GgufError as error:
            raise CodecError(str(error)) from error
        self._name = path.name
        self.tokens: list[str] = self.require("tokenizer.ggml.tokens")
        self.kinds: Sequence[int] = self.get("tokenizer.ggml.token_type") or [_NORMAL] * len(
            self.tokens
        )

    def get(self, key: str) -> Any:
        try:
            return self._file.field(key)
        except GgufError as error:
            raise CodecError(str(error)) from error

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise CodecError(f"{self._name} has no {key}, so its tokenizer cannot be built")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        return default if value is None else bool(value)


def _byte_level(fields: _Metadata) -> Tokenizer:
    name = fields.get("tokenizer.ggml.pre") or "default"
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise CodecError(f"the pre-tokenizer '{name}' is not known; known ones are {known}")
    merges = [_pair(merge) for merge in fields.require("tokenizer.ggml.merges")]
    tokenizer = _bpe(fields, merges, ignore_merges=pre.whole_words)
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    words = [splitters.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    tokenizer.pre_tokenizer = splitters.Sequence(
        [*words, splitters.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, fields, add_bos=pre.add_bos)
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentence_piece(fields: _Metadata) -> Tokenizer:
    unknown = fields.get("tokenizer.ggml.unknown_token_id")
    tokenizer = _bpe(
        fields,
        _merges_by_score(fields),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else fields.tokens[unknown],
    )
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    strip = []
    if fields.flag("tokenizer.ggml.add_space_prefix", default=True):
        steps.insert(0, normalizers.Prepend("▁"))
        strip = [decoders.Strip(" ", 1, 0)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    _add_tokens(tokenizer, fields, add_bos=True)
    return tokenizer


def _merges_by_score(fields: _Metadata) -> list[tuple[str, str]]:
    """Express SentencePiece's rule, "join the neighbours whose union scores best", as BPE merges.

    Every way to cut a piece into two other pieces is a merge that ranks by the score of the piece.
    """
    scores = fields.require("tokenizer.ggml.scores")
    pieces = {
        text: score
        for text, score, kind in zip(fields.tokens, scores, fields.kinds, strict=True)
        if kind == _NORMAL
    }
    merges = [
        (-score, index, text[:cut], text[cut:])
        for index, (text, score) in enumerate(pieces.items())
        for cut in range(1, len(text))
        if text[:cut] in pieces and text[cut:] in pieces
    ]
    merges.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in merges]


def _bpe(fields: _Metadata, merges: list[tuple[str, str]], **options: Any) -> Tokenizer:
    vocabulary = {text: token for token, text in enumerate(fields.tokens)}
    try:
        return Tokenizer(BPE(vocab=vocabulary, merges=merges, **options))
    except Exception as error:  # the library raises this bare class
        raise CodecError(f"the tokenizer's vocabulary and merges do not fit: {error}") from error


def _add_tokens(tokenizer: Tokenizer, fields: _Metadata, add_bos: bool) -> None:
    bos, eos = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    special, ordinary = [], []
    for token, (text, kind) in enumerate(zip(fields.tokens, fields.kinds, strict=True)):
        if kind in {_CONTROL, _UNKNOWN} or token in {bos, eos}:
            special.append(AddedToken(text, normalized=False))
        elif kind == _USER_DEFINED:
            ordinary.append(AddedToken(text, normalized=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(ordinary)
    if bos is not None and fields.flag("tokenizer.ggml.add_bos_token", default=add_bos):
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$bos $A".replace("$bos", fields.tokens[bos]),
            special_tokens=[(fields.tokens[bos], bos)],
        )
