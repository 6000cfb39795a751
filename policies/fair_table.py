"""Whose entry goes when a table that tenants share is full."""

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class FairTable(Generic[Key, Value]):
    """At most `capacity` entries; beyond that the oldest of the tenant that holds most goes.

    So no tenant that keeps to an equal share of the table loses anything to another. Of tenants
    that hold as many, the one that has held so many for longest gives way. What was just put
    always stays. Every operation takes constant time and what goes depends on nothing but what was
    put and dropped, in its order. Raises ValueError for a capacity below 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._capacity = capacity
        self._values: OrderedDict[tuple[str, Key], Value] = OrderedDict()  # last put last
        self._keys: dict[str, OrderedDict[Key, None]] = {}  # of each tenant, last put last
        self._holders: dict[int, OrderedDict[str, None]] = {}  # by how many they hold
        self._most = 0  # that any tenant holds

    def __len__(self) -> int:
        return len(self._values)

    def get(self, tenant: str, key: Key) -> Value | None:
        """What `tenant` has under `key`."""
        return self._values.get((tenant, key))

    def oldest(self) -> tuple[str, Key, Value] | None:
        """Tenant, key and value of the entry that was last put before all others."""
        if not self._values:
            return None
        (tenant, key), value = next(iter(self._values.items()))
        return tenant, key, value

    def put(self, tenant: str, key: Key, value: Value) -> tuple[str, Key] | None:
        """Hold `value`, from now on the tenant's newest; returns whose entry went for it."""
        known = (tenant, key) in self._values
        self._values[tenant, key] = value
        self._values.move_to_end((tenant, key))
        keys = self._keys.setdefault(tenant, OrderedDict())
        keys[key] = None
        keys.move_to_end(key)
        if not known:
            self._resized(tenant, len(keys) - 1)
        return self._evict() if len(self._values) > self._capacity else None

    def drop(self, tenant: str, key: Key) -> None:
        """Hold it no longer, if it is held."""
        if (tenant, key) not in self._values:
            return
        del self._values[tenant, key]
        keys = self._keys[tenant]
        del keys[key]
        self._resized(tenant, len(keys) + 1)

    def _evict(self) -> tuple[str, Key]:
        tenant = next(iter(self._holders[self._most]))
        key = next(iter(self._keys[tenant]))
        self.drop(tenant, key)
        return tenant, key

    def _resized(self, tenant: str, before: int) -> None:
        """`tenant` holds one more or one fewer than `before`."""
        size = len(self._keys[tenant])
        if before:
            holders = self._holders[before]
            del holders[tenant]
            if not holders:
                del self._holders[before]
        if size:
            self._holders.setdefault(size, OrderedDict())[tenant] = None
        else:
            del self._keys[tenant]
        # Sizes change by one: where the last of the largest has shrunk, its size is the largest.
        if size > self._most or self._most not in self._holders:
            self._most = size
