"""What a simulated model says: rules for the next tokens of many sequences at once."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from engine.core.plan import IntArray, Join, LongArray


class TokenSource(Protocol):
    """Draws tokens by slot. Token i of a sequence must depend on its request and i alone."""

    def join(self, join: Join) -> None:
        """A sequence enters the batch."""
        ...

    def draw(self, slots: LongArray, indices: IntArray) -> IntArray:
        """Output token `indices[k]` of the sequence at `slots[k]`, for every k."""
        ...


TokenRule = Callable[[Join, int], int]


def counting_tokens(vocab_size: int) -> TokenRule:
    """Token i of a sequence is a function of its seed, prompt and i alone; never a stop token."""

    def draw(join: Join, index: int) -> int:
        mixed = (join.sampling.seed * 1_000_003 + int(join.tokens[0]) * 7919 + index * 31) & 0xFFFF
        token = mixed % vocab_size
        banned = join.sampling.stop_token_ids
        while token in banned:
            token = (token + 1) % vocab_size
        return token

    return draw


class PerToken:
    """A rule asked once for every token; simple and slow."""

    def __init__(self, rule: TokenRule) -> None:
        self._rule = rule
        self._joins: dict[int, Join] = {}

    def join(self, join: Join) -> None:
        self._joins[join.slot] = join

    def draw(self, slots: LongArray, indices: IntArray) -> IntArray:
        pairs = zip(slots.tolist(), indices.tolist(), strict=True)
        return np.asarray([self._rule(self._joins[s], i) for s, i in pairs], np.int32)


class TrueLengths:
    """Every sequence wants to end after its true length: then it draws STOP, before that WORD.

    `lengths` maps sequence ids to output tokens, the stop token included. Where the stop token is
    not one of the request's own, only the output cap ends it.
    """

    STOP = 1
    WORD = STOP + 1
    VOCABULARY = 3

    def __init__(self, lengths: Mapping[int, int], max_running: int) -> None:
        self._lengths = lengths
        self._last: IntArray = np.zeros(max_running, np.int32)  # index of the last token, by slot

    def join(self, join: Join) -> None:
        self._last[join.slot] = self._lengths[join.sequence] - 1

    def draw(self, slots: LongArray, indices: IntArray) -> IntArray:
        tokens: IntArray = np.subtract(self.WORD, indices >= self._last[slots], dtype=np.int32)
        return tokens  # STOP is one below WORD
