"""Text to tokens and tokens to bytes for one model."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from engine.core.plan import IntArray
from engine.runtime.text.control import UNGUARD, ControlGuard
from engine.runtime.text.errors import ChatTemplateError, CodecError, EncodingError
from engine.runtime.text.folder import read_folder
from engine.runtime.text.gguf_tokenizer import read_gguf
from engine.runtime.text.pieces import token_table
from engine.runtime.text.source import TokenizerSource
from engine.runtime.text.template import ChatTemplate
from engine.runtime.text.turns import Turns

# Characters up to which encode() is called, which keeps the interpreter's lock. The batch call lets
# other threads run meanwhile, and then waits for them: far longer than a short text takes.
SHORT_TEXT = 1000


class TextCodec:
    """One model's tokenizer and chat template. Immutable, and safe to use from several threads.

    Text that comes from users never becomes a special token: neither a completion prompt nor the
    content of a chat message that spells `<|im_end|>`. Only the chat template and the tokenizer's
    own rule for the start of a text write special tokens. Added tokens that the model does not call
    special, such as `<think>`, are ordinary vocabulary and are read wherever they stand.

    `eos_ids` end a text or a turn. `vocab_size` is one more than the highest token id, which may
    be less than the rows of the model's output. `context_length` is in tokens.
    """

    def __init__(self, source: TokenizerSource) -> None:
        self._bytes, self._special = token_table(source.tokenizer)
        self._special_text = {
            entry["id"]: entry["content"]
            for entry in source.tokenizer["added_tokens"]
            if entry["special"]
        }
        self._guard = ControlGuard(self._special_text.values())
        self._tokenizer = _build(source.tokenizer, self._special_text)
        self._template = (
            None
            if source.chat_template is None
            else ChatTemplate(source.chat_template, source.special_tokens)
        )
        self._turns = Turns(
            _ends_of_text(source.tokenizer), partial(self._encode, add_special=False)
        )
        self.vocab_size = len(self._bytes)
        self.eos_ids = source.eos_ids
        self.context_length = source.context_length
        self._check_guard(source.special_tokens.get("unk_token"))

    @classmethod
    def load(cls, path: Path) -> "TextCodec":
        """Read a Hugging Face folder or a GGUF file. Raises CodecError."""
        source = read_folder(path) if path.is_dir() else read_gguf(path)
        try:
            return cls(source)
        except CodecError as error:
            raise CodecError(f"{path}: {error}") from error

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Encode the text of a user; `add_special` adds what the model wants at a text's start.

        Raises EncodingError if the text holds an unpaired surrogate.
        """
        return self._encode(self._guard.guard(text), add_special)

    def encode_chat(self, messages: Sequence[Mapping[str, str]], owner: str = "") -> IntArray:
        """Encode a conversation up to the point where the assistant speaks: int32, [tokens].

        Messages are mappings with `role`, `content` and whatever else the template knows. Turns
        that `owner` sent before are not encoded again. Raises ChatTemplateError, or EncodingError
        if a text holds an unpaired surrogate.
        """
        if self._template is None:
            raise ChatTemplateError("this model has no chat template: send a plain prompt instead")
        guarded = [
            {
                key: text if key == "role" else self._guard.guard(text)
                for key, text in message.items()
            }
            for message in messages
        ]
        return self._turns.encode(self._template.render(guarded), owner)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that the token stands for: none for special tokens and unused ids."""
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""

    def token_text(self, token: int) -> str:
        """Return the token as people read it: special ones by name, broken characters as U+FFFD."""
        special = self._special_text.get(token)
        return self.token_bytes(token).decode(errors="replace") if special is None else special

    def is_special(self, token: int) -> bool:
        return token in self._special

    def _encode(self, text: str, add_special: bool) -> list[int]:
        try:
            if len(text) <= SHORT_TEXT:
                return self._tokenizer.encode(text, add_special_tokens=add_special).ids
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special)
        except (TypeError, UnicodeEncodeError) as error:
            raise EncodingError(
                "the text holds an unpaired surrogate (U+D800 to U+DFFF)"
            ) from error
        return encoding.ids

    def _check_guard(self, unknown: str | None) -> None:
        for token, text in self._special_text.items():
            if text != unknown and token in self.encode(text, add_special=False):
                raise CodecError(
                    f"the tokenizer makes the special token '{text}' out of ordinary text, "
                    "so users could forge it"
                )


def _build(description: dict[str, Any], special: Mapping[int, str]) -> Tokenizer:
    """Build the tokenizer, changed so that only unguarded text can become a special token."""
    model = description["model"]
    names = set(special.values())
    changed = {
        **description,
        "padding": None,
        "truncation": None,
        "model": {
            **model,
            "merges": [merge for merge in model["merges"] if _merged(merge) not in names],
        },
        # Looked for before the normaliser takes the guard's marks out.
        "added_tokens": [
            {**entry, "normalized": entry["normalized"] and not entry["special"]}
            for entry in description["added_tokens"]
        ],
    }
    try:
        tokenizer = Tokenizer.from_str(json.dumps(changed))
    except Exception as error:  # the library raises this bare class
        raise CodecError(f"the tokenizer cannot be built from its description: {error}") from error
    steps = [normalizers.Replace(pattern, content) for pattern, content in UNGUARD]
    if tokenizer.normalizer is not None:
        steps.append(tokenizer.normalizer)
    tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _ends_of_text(description: dict[str, Any]) -> dict[int, str]:
    """Special tokens at which a text can be cut, by id: none if one of them looks back."""
    special = [entry for entry in description["added_tokens"] if entry["special"]]
    if any(entry.get("lstrip") or entry.get("single_word") for entry in special):
        return {}
    return {entry["id"]: entry["content"] for entry in special}


def _merged(merge: str | list[str]) -> str:
    return "".join(merge.split(" ") if isinstance(merge, str) else merge)
