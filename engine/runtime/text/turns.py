"""Remembers how the turns of conversations were encoded: an agent sends all of them each time.

A tokenizer cuts a text at its special tokens before it does anything else. So what stands from one
special token up to the next is encoded the same wherever that is, and what was encoded once need
only be looked up.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from threading import Lock

import numpy as np

from engine.core.plan import IntArray

MOST_BYTES = 32 * 1024 * 1024  # of all turns that are remembered
_OBJECTS = 400  # bytes of an entry beside its text and tokens, roughly
_CHARACTER = 4  # bytes of one, at most

Key = tuple[str, str]  # owner, text of a turn


class Turns:
    """Encodes rendered conversations; safe to use from several threads.

    `special` are the special tokens by id, `encode` the tokenizer. What one owner sent speeds up
    no other's call: how long an answer took would tell who else had said the same.
    """

    def __init__(
        self,
        special: Mapping[int, str],
        encode: Callable[[str], list[int]],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._special = frozenset(special)
        # of several that begin in the same place tokenizers take the longest
        longest_first = sorted(special.values(), key=len, reverse=True)
        self._begin = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._encode = encode
        self._most_bytes = most_bytes
        self._bytes = 0
        self._known: OrderedDict[Key, IntArray] = OrderedDict()  # least lately used first
        self._lock = Lock()

    @property
    def remembered(self) -> int:
        """Bytes, by the same measure as `most_bytes`."""
        return self._bytes

    def encode(self, text: str, owner: str) -> IntArray:
        """Token ids, int32 of shape [tokens]. Raises what the tokenizer raises."""
        turns = self._cut(text)
        known = self._recall(turns, owner)
        rest = "".join(turns[len(known) :])
        # in one call, which leaves other threads alone once instead of once a turn
        fresh = self._encode(rest) if rest else []
        if rest:
            self._remember(turns[len(known) :], fresh, owner)
        return np.concatenate([*known, np.array(fresh, np.int32)])

    def _cut(self, text: str) -> list[str]:
        """What precedes the first special token, if anything, and from each one to the next."""
        starts = [found.start() for found in self._begin.finditer(text)]
        bounds = [*(() if starts[:1] == [0] else (0,)), *starts, len(text)]
        return [text[first:end] for first, end in pairwise(bounds)]

    def _recall(self, turns: Sequence[str], owner: str) -> list[IntArray]:
        """The tokens of the first turns, up to one that is not known."""
        known = []
        with self._lock:
            for turn in turns:
                tokens = self._known.get((owner, turn))
                if tokens is None:
                    break
                self._known.move_to_end((owner, turn))
                known.append(tokens)
        return known

    def _remember(self, turns: Sequence[str], tokens: Sequence[int], owner: str) -> None:
        starts = [place for place, token in enumerate(tokens) if token in self._special]
        if self._begin.match(turns[0]) is None:
            starts.insert(0, 0)
        if len(starts) != len(turns):
            return  # text became a special token: the one for what is unknown
        with self._lock:
            for turn, (first, end) in zip(turns, pairwise((*starts, len(tokens))), strict=True):
                piece = np.array(tokens[first:end], np.int32)
                size = _size(turn, piece)
                if size <= self._most_bytes // 16 and (owner, turn) not in self._known:
                    self._known[owner, turn] = piece
                    self._bytes += size
            while self._bytes > self._most_bytes:
                (_, turn), piece = self._known.popitem(last=False)
                self._bytes -= _size(turn, piece)


def _size(turn: str, tokens: IntArray) -> int:
    return _OBJECTS + _CHARACTER * len(turn) + tokens.nbytes
