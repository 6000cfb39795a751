"""The tokenizer of a model as read from its files, whatever kind of files they are."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Everything that turns text into tokens of one model and back.

    `tokenizer` is the content of a `tokenizer.json`. `special_tokens` maps names such as
    `bos_token` to the text of that token; the chat template sees them under these names.
    `eos_ids` are the ids that end a text, `context_length` is in tokens.
    """

    tokenizer: dict[str, Any]
    chat_template: str | None
    special_tokens: dict[str, str]
    eos_ids: frozenset[int]
    context_length: int | None
