"""The one key of the admin API. It belongs to no tenant, and tenants' keys are none.

Whoever reaches the store directly may issue it, since they could change everything there anyway.
"""

from tenants import audit, keys
from tenants.connection import Connection

_RECORD = "wm:admin-key"


class AdminKey:
    def __init__(self, connection: Connection, actor: str) -> None:
        self._connection = connection
        self._actor = actor

    async def issue(self) -> str:
        """A new key, in place of the one before, which ends at once. It is shown only here."""
        raw, public_id, digest = keys.new_key()
        await self._put("admin key issued", public_id, public_id, digest)
        return raw

    async def revoke(self) -> None:
        """Leave no key; the admin API is closed until another is issued."""
        await self._put("admin key ended", "")

    async def _put(self, did: str, to: str, *key: str) -> None:
        noted = audit.entry(self._actor, did, to, {})
        await self._connection.run("put_admin_key", [_RECORD, audit.STREAM], [*noted, *key])

    async def is_opened_by(self, raw: str) -> bool:
        """Whether `raw` is the key, as the store has it now. Raises StoreUnavailable."""
        presented = keys.parse(raw)
        if presented is None:
            return False
        record: dict[str, str] = await self._connection.call(lambda client: client.hgetall(_RECORD))
        known = record.get("public_id") == presented.public_id
        digest = record.get("digest", "")
        return known and digest.isascii() and keys.matches(presented, digest)
