"""Bounds the requests that are open at the edge, in all and for each tenant."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import ApiError, Reason


class Slots:
    """Every open call holds one from before its body is read until its answer is written."""

    def __init__(self, total: int, for_each_tenant: int) -> None:
        self._total = total
        self._for_each_tenant = for_each_tenant
        self._held: Counter[str] = Counter()
        self.held = 0

    @contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        """Raises ApiError, 429 or 503, when there is no room."""
        if self._held[tenant] >= self._for_each_tenant:
            raise ApiError(Reason.TENANT_BUSY, facts={"limit_requests": self._for_each_tenant})
        if self.held >= self._total:
            raise ApiError(Reason.SERVER_BUSY)
        self._held[tenant] += 1
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]
