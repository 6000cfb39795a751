"""The one key of the admin API. It belongs to no tenant, and tenants' keys are none.

Whoever reaches the store directly may issue it, since they could change everything there anyway.
"""

from tenants import keys
from tenants.connection import Connection

_RECORD = "wm:admin-key"


class AdminKey:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def issue(self) -> str:
        """A new key, in place of the one before, which ends at once. It is shown only here."""
        raw, public_id, digest = keys.new_key()
        fields = {"public_id": public_id, "digest": digest}
        await self._connection.call(lambda client: client.hset(_RECORD, mapping=fields))
        return raw

    async def revoke(self) -> None:
        """Leave no key; the admin API is closed until another is issued."""
        await self._connection.call(lambda client: client.delete(_RECORD))

    async def is_opened_by(self, raw: str) -> bool:
        """Whether `raw` is the key, as the store has it now. Raises StoreUnavailable."""
        presented = keys.parse(raw)
        if presented is None:
            return False
        record: dict[str, str] = await self._connection.call(lambda client: client.hgetall(_RECORD))
        known = record.get("public_id") == presented.public_id
        return known and keys.matches(presented, record["digest"])
