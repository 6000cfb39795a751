"""Who is calling: a presented key to a Principal, with a short cache in front of the store.

A change that the store tells of (`forget`) counts at once, one whose message got lost within `ttl`.
With the store away, keys that were seen lately go on
working for `stale_if_error`; a key that was not can neither be let in nor called unknown. Whoever
watches the store spares callers with such a key the wait for what it does not answer. Keys end by
the store's clock, so that servers whose own clocks differ, or jump, agree on it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeGuard

from telemetry.clock import Clock
from telemetry.units import SECOND
from tenants import keys
from tenants.changes import Change
from tenants.connection import RecordDamaged, StoreUnavailable
from tenants.model import Principal

log = logging.getLogger(__name__)

_QUIET_SECONDS = 60.0  # between log lines about records that cannot be read
_PAUSE_SECONDS = 1.0  # between attempts to reach a store that is away


class AuthReason(StrEnum):
    """Why a key was not accepted."""

    MISSING = "missing"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    REVOKED = "revoked"
    DISABLED = "disabled"
    TENANT_DISABLED = "tenant_disabled"


_SENTENCES = {
    AuthReason.MISSING: "no API key: send it as 'Authorization: Bearer wm-...' or 'x-api-key'",
    AuthReason.MALFORMED: "the API key is malformed: it looks like wm-<id>-<secret>",
    AuthReason.UNKNOWN: "the API key is not known",
    AuthReason.EXPIRED: "the API key has expired",
    AuthReason.REVOKED: "the API key was revoked",
    AuthReason.DISABLED: "the API key is disabled",
    AuthReason.TENANT_DISABLED: "the API key's tenant is disabled",
}


class AuthError(Exception):
    """The caller is not who may come in. The text is safe to show and to log."""

    def __init__(self, reason: AuthReason) -> None:
        super().__init__(_SENTENCES[reason])
        self.reason = reason


class Directory(Protocol):
    """Where keys are looked up; `tenants.store.Store` is one."""

    async def lookup(self, public_id: str) -> Principal | None:
        """The key and its tenant, or None; raises StoreUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class _Entry:
    principal: Principal | None  # None: the store has no such key
    checked: int  # monotonic ns at which the store was asked


class Authenticator:
    """Used from one event loop. Times are in seconds, `capacity` in keys.

    `known_away` says whether the store is known not to answer just now.
    """

    def __init__(
        self,
        store: Directory,
        clock: Clock,
        known_away: Callable[[], bool] = lambda: False,
        *,
        ttl: float = 0.9,  # of the second that is promised, the rest is for asking
        stale_if_error: float = 300.0,
        capacity: int = 10_000,
    ) -> None:
        if not 0 < ttl <= 1:
            raise ValueError(f"ttl must be above 0 and at most 1 second, not {ttl}")
        if stale_if_error < 0:
            raise ValueError(f"stale_if_error must not be negative, but is {stale_if_error}")
        self._store = store
        self._clock = clock
        self._known_away = known_away
        self._ttl = round(ttl * SECOND)
        self._stale = round(stale_if_error * SECOND)
        # Apart, so that a flood of invented keys pushes no real one out.
        self._known = _Cache(capacity)
        self._unknown = _Cache(capacity)
        self._lookups: dict[tuple[str, int], asyncio.Task[_Entry | StoreUnavailable]] = {}
        self._changes = 0
        self._away: StoreUnavailable | None = None
        self._away_until = 0
        self._quiet_until = 0

    async def authenticate(self, raw: str | None) -> Principal:
        """Whose key `raw` is. Raises AuthError, StoreUnavailable."""
        if not raw:
            raise AuthError(AuthReason.MISSING)
        presented = keys.parse(raw)
        if presented is None:
            raise AuthError(AuthReason.MALFORMED)
        entry = await self._find(presented.public_id)
        principal = entry.principal
        # Nothing about a key is told to those who do not hold its secret.
        if principal is None or not keys.matches(presented, principal.key.digest):
            raise AuthError(AuthReason.UNKNOWN)
        if principal.key.revoked:
            raise AuthError(AuthReason.REVOKED)
        if principal.key.disabled:
            raise AuthError(AuthReason.DISABLED)
        unix = principal.read_at + self._clock.now() - entry.checked
        if principal.key.expired(unix // SECOND):
            raise AuthError(AuthReason.EXPIRED)
        if principal.tenant.disabled:
            raise AuthError(AuthReason.TENANT_DISABLED)
        return principal

    def forget(self, change: Change) -> None:
        """Drop what is cached of a key or of a tenant that was changed.

        With the store away nobody can then say what they are now, and they are not let in.
        """
        self._changes += 1
        if change.kind == "key":
            self._known.drop(change.id)
        elif change.kind == "tenant":
            self._known.drop_tenant(change.id)

    async def _find(self, public_id: str) -> _Entry:
        entry = self._known.get(public_id) or self._unknown.get(public_id)
        now = self._clock.now()
        if entry and now - entry.checked < self._ttl:
            return entry
        if self._known_away() and self._still_good(entry):
            return entry
        answer = await self._ask(public_id, now)
        if isinstance(answer, _Entry):
            return answer
        if self._still_good(entry):
            return entry
        raise StoreUnavailable(str(answer)) from answer  # one object raised often keeps every trace

    def _still_good(self, entry: _Entry | None) -> TypeGuard[_Entry]:
        """Whether the key may be let in on what the store last said of it."""
        if entry is None or entry.principal is None:
            return False
        return self._clock.now() - entry.checked < self._stale

    async def _ask(self, public_id: str, now: int) -> _Entry | StoreUnavailable:
        """The store's answer; callers who ask for the same key meanwhile share it."""
        if self._away and now < self._away_until:
            return self._away
        # What was asked before a change may be answered as it was before.
        asked = (public_id, self._changes)
        lookup = self._lookups.get(asked)
        if lookup is None:
            lookup = asyncio.create_task(self._look_up(public_id, now))
            self._lookups[asked] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(asked))
        # One caller who hangs up must not take the answer from the others.
        return await asyncio.shield(lookup)

    async def _look_up(self, public_id: str, now: int) -> _Entry | StoreUnavailable:
        changes = self._changes
        try:
            entry = _Entry(await self._store.lookup(public_id), now)
        except RecordDamaged as error:  # the keys of others can be looked up
            self._away = None
            self._tell(public_id, error)
            return error
        except StoreUnavailable as error:
            self._away = error
            self._away_until = self._clock.now() + round(_PAUSE_SECONDS * SECOND)
            return error
        self._away = None
        if changes != self._changes:
            return entry  # good for those who asked before the change, and not kept
        if entry.principal:
            self._known.put(public_id, entry)
            self._unknown.drop(public_id)
        else:
            self._unknown.put(public_id, entry)
            self._known.drop(public_id)
        return entry

    def _tell(self, public_id: str, error: RecordDamaged) -> None:
        now = self._clock.now()
        if now >= self._quiet_until:
            self._quiet_until = now + round(_QUIET_SECONDS * SECOND)
            log.error("the key %s cannot be checked: %s", public_id, error)


class _Cache:
    """Entries by public id; beyond the capacity, the one used least recently goes."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._capacity = capacity
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def get(self, public_id: str) -> _Entry | None:
        entry = self._entries.get(public_id)
        if entry:
            self._entries.move_to_end(public_id)
        return entry

    def put(self, public_id: str, entry: _Entry) -> None:
        self._entries[public_id] = entry
        self._entries.move_to_end(public_id)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def drop(self, public_id: str) -> None:
        self._entries.pop(public_id, None)

    def drop_tenant(self, tenant: str) -> None:
        for public_id, entry in list(self._entries.items()):
            if entry.principal and entry.principal.tenant.id == tenant:
                del self._entries[public_id]
