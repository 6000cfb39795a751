"""What the store tells everybody of a change: which records of a cache are stale.

Sent by the scripts that make the change, so that there is no change without its message. Messages
get lost with a connection; they make a change felt sooner and are not needed for it to be felt.
"""

from dataclasses import dataclass

CHANNEL = "wm:changes"


@dataclass(frozen=True, slots=True)
class Change:
    """`kind` is `key` or `tenant`, `id` the key's public id or the tenant's. Others may come."""

    kind: str
    id: str


def read_change(text: str) -> Change:
    kind, _, name = text.partition(" ")
    return Change(kind, name)
