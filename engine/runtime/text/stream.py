"""Turns the tokens of one choice into text that is safe to show while they arrive."""

from codecs import getincrementaldecoder
from collections.abc import Collection, Sequence
from typing import Protocol

from engine.runtime.text.stops import StopMatcher

_Utf8Decoder = getincrementaldecoder("utf-8")


class TokenBytes(Protocol):
    def token_bytes(self, token: int) -> bytes: ...


class TextStream:
    """Incremental detokeniser with stop strings.

    The text is the concatenated bytes of the tokens, decoded as UTF-8: a character is shown once
    its last byte is there, bytes that belong to no character become U+FFFD, and a character that
    never gets complete becomes U+FFFD in flush(). Tokens in `hidden` and special tokens have no
    text. A leading space is text: the output continues a prompt.

    The text ends before the stop string that is completed first; when several are completed by the
    same character, before the one that starts first. Neither depends on how the text is cut into
    tokens or the tokens into calls. A call takes time proportional to its new text times the number
    of stop strings, plus a copy of the withheld text, which is shorter than the longest of them.
    """

    def __init__(self, codec: TokenBytes, stop: Sequence[str], hidden: Collection[int]) -> None:
        self._codec = codec
        self._hidden = frozenset(hidden)
        self._matchers = [StopMatcher(text) for text in stop]
        self._decoder = _Utf8Decoder("replace")
        self._withheld = ""  # may turn out to begin a stop string
        self._tokens = 0
        # Number of output tokens up to and including the one that completed a stop string: these
        # are kept and paid for. Later tokens are ignored.
        self.stopped_at: int | None = None
        self.stopped_by: str | None = None  # the stop string

    def push(self, tokens: Sequence[int]) -> str:
        """Take the next output tokens; return the text that can be shown now."""
        shown = []
        for token in tokens:
            if self.stopped_at is not None:
                break
            self._tokens += 1
            if token not in self._hidden:
                shown.append(self._show(self._decoder.decode(self._codec.token_bytes(token))))
        return "".join(shown)

    def flush(self) -> str:
        """End the text; return what was withheld. Nothing may be pushed afterwards."""
        if self.stopped_at is not None:
            return ""
        shown = self._show(self._decoder.decode(b"", final=True))
        rest, self._withheld = self._withheld, ""
        return shown + rest

    def _show(self, text: str) -> str:
        if not text or not self._matchers:
            return text
        found = []
        for matcher in self._matchers:
            end = matcher.feed(text)
            if end is not None:
                found.append((end, -len(matcher.stop), matcher.stop))
        buffer = self._withheld + text
        if found:
            end, minus_length, self.stopped_by = min(found)
            self.stopped_at = self._tokens
            cut = len(self._withheld) + end + minus_length
            self._withheld = ""
        else:
            cut = len(buffer) - max(matcher.matched for matcher in self._matchers)
            self._withheld = buffer[cut:]
        return buffer[:cut]
