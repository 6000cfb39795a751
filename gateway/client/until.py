"""The end of a call on this side."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.client.errors import DeadlineError

# The server keeps the deadline and has more to say about it: how far it came, and for some tenants
# the part that is done. Only when it is silent for so long past the end does the call end here.
GRACE = 1.0


@asynccontextmanager
async def until(end: float) -> AsyncIterator[None]:
    """Raises DeadlineError in what is inside once `end` (monotonic seconds) is well past."""
    left = None if end == math.inf else max(0.0, end + GRACE - time.monotonic())
    try:
        async with asyncio.timeout(left):
            yield
    except TimeoutError:
        raise DeadlineError from None
