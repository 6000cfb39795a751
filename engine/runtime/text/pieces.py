"""The bytes that each token stands for."""

import re
from collections.abc import Callable
from typing import Any

from engine.runtime.text.errors import CodecError

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"


def token_table(tokenizer: dict[str, Any]) -> tuple[list[bytes], frozenset[int]]:
    """Return the bytes of every token id of a `tokenizer.json`, and the ids of special tokens.

    Special tokens and unused ids stand for no bytes. Raises CodecError on an unknown decoder.
    """
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    texts: dict[int, str] = {token: text for text, token in model["vocab"].items()}
    texts.update((entry["id"], entry["content"]) for entry in added)
    special = frozenset(entry["id"] for entry in added if entry["special"])
    to_bytes = _piece_reader(tokenizer)
    table = [b""] * (max(texts, default=-1) + 1)
    for token, text in texts.items():
        if token not in special:
            table[token] = to_bytes(text)
    return table, special


def _piece_reader(tokenizer: dict[str, Any]) -> Callable[[str], bytes]:
    kinds = {step["type"] for step in _decoder_steps(tokenizer.get("decoder"))}
    if "ByteLevel" in kinds:
        return _byte_level_bytes
    if kinds & {"ByteFallback", "Metaspace"}:
        return _sentence_piece_bytes
    found = ", ".join(sorted(kinds)) or "none"
    raise CodecError(
        f"the tokenizer's decoder must be byte-level or SentencePiece-like, not: {found}"
    )


def _decoder_steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    return steps


def _byte_alphabet() -> dict[str, int]:
    """Map GPT-2's printable stand-ins to bytes.

    Printable Latin-1 bytes stand for themselves; the others are numbered from U+0100 upwards.
    Source: "byte-level BPE", Radford et al., "Language Models are Unsupervised Multitask Learners".
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(0x100 + index), byte) for index, byte in enumerate(others))
    return alphabet


_ALPHABET = _byte_alphabet()


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes([_ALPHABET[character] for character in piece])
    except KeyError:  # an added token in plain writing, such as one with a space in it
        return piece.encode()


def _sentence_piece_bytes(piece: str) -> bytes:
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(_SPACE, " ").encode()
