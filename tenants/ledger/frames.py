"""The usage journal's binary form. Pure: bytes in, bytes out.

A file is a header that names the file's id, the model and who writes it, and then frames, one for
each step that used anything. A frame is a head (magic, rows, hour, CRC-32 of all the rest) and rows
of fixed size, one for each account, little-endian. It is written by one call, so a process that is
killed leaves at most one of them torn, at the end of the file; a step with a torn frame was never
handed out.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from telemetry.usage import COLUMNS, Account, Usage

_FILE_MAGIC = b"watermaster-us-1"
_ANY_VERSION = b"watermaster-us-"
_HEADER = struct.Struct("<16s16s924s64sI")  # magic, file id, model, writer, CRC-32
_HEAD = struct.Struct("<4sIII")  # magic, rows, hour, CRC-32
_MAGIC = b"WMuf"
_ROW = struct.Struct("<64s20s7iq")  # tenant, key, counts of tokens and requests, device ns
_counts = attrgetter(*COLUMNS)
HEADER_BYTES = _HEADER.size
MODEL_BYTES = 924


class NotAJournalError(Exception):
    """The file does not begin as a usage journal does."""


class OtherVersionError(NotAJournalError):
    """It is one, in a form that another version of Watermaster writes."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The usage of one step, in `hour` hours since the Unix epoch, and where its frame ends."""

    hour: int
    used: Mapping[Account, Usage]
    end: int


@dataclass(slots=True)
class Decoded:
    """Frames in order. `torn` bytes at the end are of a step that was never handed out; `damaged`

    ones have whole frames after them, so they were not torn by a kill but spoilt on the disk.
    """

    frames: list[Frame] = field(default_factory=list)
    torn: int = 0
    damaged: int = 0


def encode_header(file_id: str, model: str, writer: str = "") -> bytes:
    """`file_id` is 16 characters; a model's name may have `MODEL_BYTES` bytes of UTF-8.

    `writer` is the process' name among the replicas, up to 64 characters.
    """
    name = model.encode()
    if len(name) > MODEL_BYTES:
        raise ValueError(f"the model's name {model!r} is longer than {MODEL_BYTES} bytes")
    checked = _HEADER.pack(_FILE_MAGIC, file_id.encode(), name, writer.encode(), 0)[:-4]
    return checked + struct.pack("<I", zlib.crc32(checked))


def decode_header(data: bytes) -> tuple[str, str, str]:
    """The file's id, the model and the writer. Raises NotAJournalError, OtherVersionError."""
    if data.startswith(_ANY_VERSION) and not data.startswith(_FILE_MAGIC):
        raise OtherVersionError("another version of Watermaster wrote it")
    if len(data) < HEADER_BYTES:
        raise NotAJournalError("it is shorter than a header")
    magic, file_id, model, writer, crc = _HEADER.unpack_from(data)
    if magic != _FILE_MAGIC or crc != zlib.crc32(data[: HEADER_BYTES - 4]):
        raise NotAJournalError("it has another header")
    return _text(file_id), _text(model), _text(writer)


def encode(hour: int, used: Mapping[Account, Usage]) -> bytes:
    """One frame. Tenants have at most 64 bytes, keys 20."""
    rows = [
        _ROW.pack(account.tenant.encode(), account.key.encode(), *_counts(usage))
        for account, usage in used.items()
    ]
    body = b"".join(rows)
    return _HEAD.pack(_MAGIC, len(rows), hour, _check(len(rows), hour, body)) + body


def decode(data: bytes, offset: int = 0) -> Decoded:
    """The frames in `data`, which begins where a frame does, at `offset` of its file."""
    decoded = Decoded()
    at = 0
    while at < len(data):
        frame = _frame(data, at, offset)
        if frame is None:
            following = _next_frame(data, at + 1, offset)
            if following < 0:
                decoded.torn = len(data) - at
                break
            decoded.damaged += following - at
            at = following
            continue
        decoded.frames.append(frame)
        at = frame.end - offset
    return decoded


def _frame(data: bytes, at: int, offset: int) -> Frame | None:
    if len(data) - at < _HEAD.size:
        return None
    magic, rows, hour, crc = _HEAD.unpack_from(data, at)
    begin = at + _HEAD.size
    end = begin + rows * _ROW.size
    if magic != _MAGIC or end > len(data) or crc != _check(rows, hour, data[begin:end]):
        return None
    used = {
        Account(_text(tenant), _text(key)): Usage(*counts)
        for tenant, key, *counts in _ROW.iter_unpack(data[begin:end])
    }
    return Frame(hour, used, offset + end)


def _next_frame(data: bytes, at: int, offset: int) -> int:
    """Where the next whole frame begins, or -1."""
    while (at := data.find(_MAGIC, at)) >= 0:
        if _frame(data, at, offset) is not None:
            return at
        at += 1
    return -1


def _check(rows: int, hour: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(struct.pack("<II", rows, hour)))


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode()
