"""The journal's binary form: whatever is written reads back, and a kill tears at most the end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.usage import Account, Usage
from tenants.ledger.frames import (
    HEADER_BYTES,
    MODEL_BYTES,
    NotAJournalError,
    decode,
    decode_header,
    encode,
    encode_header,
)

ACCOUNTS = st.builds(Account, st.sampled_from(["a", "b.c-d_1", "z" * 63]), st.just("0123456789ab"))
COUNTS = st.sampled_from([0, 1, 512, -7, 2**31 - 1, -(2**31)])
USAGES = st.builds(Usage, COUNTS, COUNTS, output_tokens=COUNTS, device_ns=st.just(2**63 - 1))
USED = st.dictionaries(ACCOUNTS, USAGES, min_size=1, max_size=2)
STEPS = st.lists(st.tuples(st.integers(0, 2**32 - 1), USED), max_size=3)


@settings(max_examples=50)
@given(STEPS)
def test_steps_read_back_as_written(steps):
    data = b"".join(encode(hour, used) for hour, used in steps)
    decoded = decode(data)
    assert [(frame.hour, frame.used) for frame in decoded.frames] == steps
    assert (decoded.torn, decoded.damaged) == (0, 0)
    assert not steps or decoded.frames[-1].end == len(data)


@settings(max_examples=10)
@given(STEPS.filter(bool))
def test_torn_at_any_byte_exactly_the_whole_steps_before_it_remain(steps):
    frames = [encode(hour, used) for hour, used in steps]
    data = b"".join(frames)
    ends = [sum(map(len, frames[: number + 1])) for number in range(len(frames))]
    for cut in range(len(data) + 1):
        decoded = decode(data[:cut])
        whole = [end for end in ends if end <= cut]
        assert [frame.end for frame in decoded.frames] == whole
        assert decoded.torn == cut - (whole[-1] if whole else 0)
        assert decoded.damaged == 0


@settings(max_examples=50)
@given(STEPS.filter(lambda steps: len(steps) > 1), st.data())
def test_a_spoilt_byte_costs_its_own_step_and_is_told_from_a_torn_end(steps, data):
    frames = [encode(hour, used) for hour, used in steps]
    victim = data.draw(st.integers(0, len(frames) - 1))
    at = data.draw(st.integers(0, len(frames[victim]) - 1))
    spoilt = bytearray(frames[victim])
    spoilt[at] ^= data.draw(st.integers(1, 255))
    decoded = decode(b"".join([*frames[:victim], bytes(spoilt), *frames[victim + 1 :]]))
    others = [step for number, step in enumerate(steps) if number != victim]
    assert [(frame.hour, frame.used) for frame in decoded.frames] == others
    last = victim == len(frames) - 1
    assert (decoded.torn, decoded.damaged) == (
        (len(frames[victim]), 0) if last else (0, len(frames[victim]))
    )


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40))
def test_a_header_names_its_file_and_its_model(model):
    header = encode_header("0123456789abcdef", model, "w" * 64)
    assert len(header) == HEADER_BYTES
    assert decode_header(header + b"frames") == ("0123456789abcdef", model, "w" * 64)


def test_what_is_no_header_is_refused():
    header = encode_header("0123456789abcdef", "sim")
    with pytest.raises(NotAJournalError):
        decode_header(header[:-1])
    with pytest.raises(NotAJournalError):
        decode_header(header.replace(b"sim", b"sum"))
    with pytest.raises(ValueError, match="longer than"):
        encode_header("0123456789abcdef", "m" * (MODEL_BYTES + 1))
