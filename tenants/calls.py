"""Answers kept by idempotency key, so that a call sent again is not computed again.

A record is *running* while a replica computes its answer: it expires after `LEASE_MS` unless that
replica goes on telling that it still runs. For `KEPT_MS` it then holds the answer, or that there
was one too large to keep. What one tenant may have kept is bounded in number and in bytes; what was
stored first goes first.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from tenants.connection import Connection, RecordDamaged

LEASE_MS = 30_000
KEPT_MS = 3_600_000
MOST_ANSWERS = 10_000  # of a tenant
MOST_BYTES = 16 << 20  # of a tenant


class CallState(StrEnum):
    """What the store knew of a key when it was asked."""

    NEW = "NEW"  # nothing; it is the asker's now
    RUNNING = "RUNNING"  # on another replica
    DONE = "DONE"
    LOST = "LOST"  # done, and its answer was too large to keep
    OTHER = "OTHER"  # the key stands for another call
    UNREADABLE = "UNREADABLE"  # something that a newer version wrote, or somebody damaged


@dataclass(frozen=True, slots=True)
class CallName:
    """A tenant's call under an idempotency key. `print` tells its payload from others."""

    tenant: str
    key: str
    print: str

    @property
    def member(self) -> str:
        """What the key is called in the store: keys are the callers' and may be anything."""
        return hashlib.sha256(self.key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Found:
    """`answer` of one that is done; for how many ms one that runs has been running."""

    state: CallState
    answer: str = ""
    running_ms: int = 0


class Calls:
    """The store's side of it. Every method raises StoreUnavailable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def begin(self, name: CallName, replica: str, run: str) -> Found:
        """Claim the call for this `run` of this `replica`, unless it is somebody else's or done.

        A replica knows its own runs, so one of its own that the store still holds is over.
        """
        try:
            told = await self._connection.run(
                "begin_call", [_record(name)], [name.print, replica, run, str(LEASE_MS)]
            )
        except RecordDamaged:
            told = []
        match told:
            case [CallState.DONE, str(answer)]:
                return Found(CallState.DONE, answer=answer)
            case [CallState.RUNNING, running_ms]:
                return Found(CallState.RUNNING, running_ms=int(running_ms))
            case [CallState.NEW | CallState.LOST | CallState.OTHER as state, *_]:
                return Found(CallState(state))
            case _:
                return Found(CallState.UNREADABLE)

    async def renew(self, name: CallName, run: str) -> None:
        """The run goes on."""
        await self._connection.run("renew_call", [_record(name)], [run, str(LEASE_MS)])

    async def finish(self, name: CallName, run: str, answer: str | None) -> bool:
        """Keep the answer; None for one that is too large.

        False when the key is another run's, which was begun when this one's claim had run out.
        """
        prefix = f"wm:call:{name.tenant}:"
        told = await self._connection.run(
            "finish_call",
            [_record(name), f"wm:calls:{name.tenant}", f"wm:call-bytes:{name.tenant}"],
            [
                *(run, "LOST" if answer is None else "DONE", answer or ""),
                *(name.member, prefix, str(KEPT_MS), str(MOST_ANSWERS), str(MOST_BYTES)),
            ],
        )
        return bool(told != -1)

    async def drop(self, name: CallName, run: str) -> None:
        """The run failed, so that the call may be sent again."""
        await self._connection.run("drop_call", [_record(name)], [run])


def _record(name: CallName) -> str:
    return f"wm:call:{name.tenant}:{name.member}"
