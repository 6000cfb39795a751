"""Who this process is among the replicas: the successor of the one that held its place before.

A place is a locked file, which the system frees however a process ends. Whoever gets the place
knows that its former holder is dead, and takes its leases over at once instead of waiting for them
to expire.
"""

import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from tenants.locks import try_lock

_PLACES = 64  # processes that share a folder
_PLACE_LENGTH = 17

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replica:
    """`name` is unique among all processes ever; it begins with `place`, its predecessors' too."""

    place: str
    name: str


def place_of(name: str) -> str:
    """The place of the replica called so."""
    return name[:_PLACE_LENGTH]


def claim(folder: Path) -> Replica:
    """Take the first free place in `folder`, until this process ends.

    Without a folder that can be written to there is nobody to succeed, which is logged.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(_PLACES):
            replica = _take(folder / f"{number}.lock")
            if replica:
                return replica
        log.warning("all %d places in %s are taken", _PLACES, folder)
    except OSError as error:
        log.warning("%s cannot be used (%s): leases outlive a crash", folder, error.strerror)
    return lonely()


def lonely() -> Replica:
    """One without a predecessor."""
    return _in(_new_place())


def _in(place: str) -> Replica:
    return Replica(place, place + secrets.token_hex(8))


def _new_place() -> str:
    return f"{secrets.token_hex(8)}."


def dead_in(folder: Path) -> list[str]:
    """The names of those who had a place in `folder` last and are gone."""
    found = (_left_by(path) for path in sorted(folder.glob("*.lock")))
    return [name for name in found if name]


def _left_by(path: Path) -> str:
    """Who had a place that is free; nothing for one that is taken."""
    file = os.open(path, os.O_RDONLY)
    try:
        name = os.read(file, 64).decode("ascii", "replace") if try_lock(file) else ""
    finally:
        os.close(file)
    return name if len(name) > _PLACE_LENGTH else ""


def _take(path: Path) -> Replica | None:
    """The one that takes the place, if nobody has it; it keeps the lock by leaving the file open,

    and its name is in it.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if not try_lock(file):
        os.close(file)
        return None
    place = os.read(file, _PLACE_LENGTH).decode("ascii", "replace")
    replica = _in(place if len(place) == _PLACE_LENGTH else _new_place())
    os.pwrite(file, replica.name.encode(), 0)
    return replica
