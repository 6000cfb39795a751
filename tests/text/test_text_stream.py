"""The stream shows the reference text, whatever the tokens and the calls are cut into."""

import codecs
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.runtime.text.stream import TextStream


class Pieces:
    """Token i stands for the i-th piece."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token]


def stream(pieces: list[bytes], stop=(), hidden=()) -> TextStream:
    return TextStream(Pieces(pieces), stop, hidden)


def visible(data: bytes) -> str:
    """Characters of `data` that no later byte can change."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def cut(text: str, stop: list[str]) -> str | None:
    """Text before the stop string that is completed first and, among those, starts first."""
    for end in range(1, len(text) + 1):
        found = [each for each in stop if text[:end].endswith(each)]
        if found:
            return text[: end - max(map(len, found))]
    return None


def may_begin_stop(text: str, stop: list[str]) -> int:
    return max(
        (size for each in stop for size in range(1, len(each)) if text.endswith(each[:size])),
        default=0,
    )


# Few characters, so that stop strings and their beginnings occur; bytes that belong to none.
CHARACTERS = st.sampled_from(["a", "b", "<", "é", "中", "😀", "\ufffd"])
TEXTS = st.text(CHARACTERS, max_size=30)
RAW = st.lists(
    st.one_of(
        CHARACTERS.map(str.encode), st.sampled_from([b"\xc3", b"\xf0\x9f", b"\x80", b"\xff"])
    ),
    max_size=20,
).map(b"".join)
STOPS = st.lists(st.text(CHARACTERS, min_size=1, max_size=5), max_size=4)


def split(draw, data, parts):
    ends = sorted(draw(st.lists(st.integers(0, len(data)), max_size=parts)))
    bounds = [0, *ends, len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


@settings(max_examples=400, deadline=None)
@given(st.data(), RAW | TEXTS.map(str.encode), STOPS)
def test_any_cut_into_tokens_and_calls_gives_the_reference_text(data, raw, stop):
    pieces = split(data.draw, raw, 12)
    calls = split(data.draw, list(range(len(pieces))), 6)
    tested = stream(pieces, stop)
    shown, pushed = "", 0
    for call in calls:
        shown += tested.push(call)
        pushed += len(call)
        so_far = visible(b"".join(pieces[:pushed]))
        expected = cut(so_far, stop)
        if expected is None:  # everything is shown but what may still begin a stop string
            expected = so_far[: len(so_far) - may_begin_stop(so_far, stop)]
        assert shown == expected
    shown += tested.flush()
    whole = raw.decode("utf-8", "replace")
    expected = cut(whole, stop)
    assert shown == (whole if expected is None else expected)
    assert tested.stopped_at == (None if expected is None else stopping_token(pieces, stop))


def stopping_token(pieces: list[bytes], stop: list[str]) -> int:
    for count in range(1, len(pieces) + 1):
        if cut(visible(b"".join(pieces[:count])), stop) is not None:
            return count
    return len(pieces)  # completed by what flush() made of the last bytes


def test_a_character_split_over_tokens_appears_when_it_is_complete():
    tested = stream([b"\xf0\x9f", b"\x98", b"\x80!", b"\xe4\xb8"])
    assert [tested.push([token]) for token in range(4)] == ["", "", "😀!", ""]
    assert tested.flush() == "\ufffd"


def test_bytes_of_no_character_appear_as_replacement_characters():
    tested = stream([b"a\xff", b"\xf0\x9f", b"b"])
    assert tested.push([0, 1]) == "a\ufffd"
    assert tested.push([2]) == "\ufffdb"
    assert tested.flush() == ""


def test_the_beginning_of_a_stop_string_never_leaks():
    tested = stream([b"Hello #", b"#", b"# world"], ["###"])
    assert tested.push([0]) == "Hello "
    assert tested.push([1]) == ""
    assert tested.push([2]) == ""
    assert tested.stopped_at == 3
    assert tested.flush() == ""


def test_a_beginning_that_leads_nowhere_is_shown_at_once():
    tested = stream([b"a##", b"b", b"##"], ["###"])
    assert tested.push([0]) == "a"
    assert tested.push([1]) == "##b"
    assert tested.push([2]) == ""
    assert tested.flush() == "##"
    assert tested.stopped_at is None


def test_a_match_inside_a_longer_beginning_is_found():
    tested = stream([b"xaab", b"c"], ["aabd", "bc"])
    assert tested.push([0]) == "x"
    assert tested.push([1]) == "aa"
    assert tested.stopped_at == 2


def test_the_longer_of_two_stop_strings_completed_together_is_cut():
    tested = stream([b"one END"], ["ND", " END"])
    assert tested.push([0]) == "one"


def test_tokens_after_the_stop_are_neither_shown_nor_counted():
    tested = stream([b"a", b".", b"b"], ["."])
    assert tested.push([0, 1, 2, 2]) == "a"
    assert tested.push([2]) == ""
    assert tested.stopped_at == 2


def test_hidden_tokens_count_but_have_no_text():
    tested = stream([b"a", b"<eos>", b"."], ["."], hidden=[1])
    assert tested.push([0, 1, 2]) == "a"
    assert tested.stopped_at == 3


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="must not be empty"):
        stream([b"a"], [""])


def test_long_stop_strings_cost_no_more_than_their_text():
    """Sixteen stop strings, one always a thousand characters into its match, on 20,000 tokens.

    Comparing whole strings in each call would take minutes.
    """
    tested = stream([b"a"], ["a" * (1000 + each) + "b" for each in range(16)])
    start = time.perf_counter()
    shown = sum(len(tested.push([0])) for _ in range(20_000))
    assert time.perf_counter() - start < 5
    assert shown == 20_000 - 1015
