"""Whether the store throws records away when its memory is full, as one that is a cache does."""

from tenants.connection import Connection, StoreUnavailable


async def eviction_policy(connection: Connection) -> str | None:
    """By which rule records are thrown away; None where they are not, or the store does not say."""
    try:
        memory = await connection.call(lambda client: client.info("memory"))
    except StoreUnavailable:  # also one that lets us not ask
        return None
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    return policy if memory.get("maxmemory") and policy != "noeviction" else None
