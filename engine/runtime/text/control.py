"""Keeps text of users from being read as control tokens.

A control token such as `<|im_end|>` ends a turn, so a user who could write one would speak with
the voice of the system. Tokenizers look for control tokens in the raw text, before normalising it.
So we put a mark behind the first character of every control token that a user's text spells, which
hides it from that search, and let the tokenizer's normaliser take the marks out again. What remains
is encoded as the plain characters that it is, in its place in the sentence.
"""

import re
from collections.abc import Iterable

# Noncharacters: Unicode promises never to give them a meaning.
_ESCAPE = "\ufdd0"
_MARK = _ESCAPE + "\ufdd1"
_LITERAL = _ESCAPE + "\ufdd2"

# What the normaliser has to replace, in this order, to get the user's text back. After guard()
# every _ESCAPE is the first half of a mark or of a literal, so neither replacement is ambiguous.
UNGUARD = ((_MARK, ""), (_LITERAL, _ESCAPE))


class ControlGuard:
    """Hides the control tokens spelled in a text."""

    def __init__(self, control_tokens: Iterable[str]) -> None:
        self._spelled = re.compile(_starts_of(set(control_tokens)))

    def guard(self, text: str) -> str:
        """Mark every control token in `text`, and a beginning of one at the end of the text.

        The latter because a template may put the text of two messages side by side.
        """
        return self._spelled.sub(rf"\g<0>{_MARK}", text.replace(_ESCAPE, _LITERAL))


def _starts_of(tokens: set[str]) -> str:
    """Pattern for the first character of a token, with the rest of it following.

    The rest is a tree of characters rather than a list of tokens: a text full of beginnings is then
    searched in time linear in its length, however many control tokens there are.
    """
    if not tokens:
        return r"(?!)"
    heads = sorted({token[0] for token in tokens})
    return "|".join(
        f"{re.escape(head)}(?={_rest({token[1:] for token in tokens if token[0] == head})})"
        for head in heads
    )


def _rest(tails: set[str]) -> str:
    if "" in tails:
        return ""
    heads = sorted({tail[0] for tail in tails})
    branches = [
        re.escape(head) + _rest({tail[1:] for tail in tails if tail[0] == head}) for head in heads
    ]
    return rf"(?:\Z|{'|'.join(branches)})"
